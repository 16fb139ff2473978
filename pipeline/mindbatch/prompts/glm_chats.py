"""The forms of chats that ChatGLM-6B's and ChatGLM2's own classes have in their code, as chat templates."""

from __future__ import annotations

_IN_TURN = (
    "{% for message in messages %}{% if message['role'] != ['user', 'assistant'][loop.index0 % 2] %}"
    "{{ raise_exception('messages must be of user and assistant in turn, the user first') }}{% endif %}"
    "{% if add_generation_prompt and loop.last and message['role'] != 'user' %}"
    "{{ raise_exception('the last message must be of the user, to be answered') }}{% endif %}{% endfor %}"
)
CHATGLM_6B = (
    f"{_IN_TURN}{{% for message in messages %}}"
    "{% if messages | length == 1 %}{{ message['content'] }}"
    "{% elif message['role'] == 'user' %}"
    "{{ '[Round ' ~ loop.index0 // 2 ~ ']\\n问：' ~ message['content'] ~ '\\n答：' }}"
    "{% else %}{{ message['content'] ~ '\\n' }}{% endif %}"
    "{% endfor %}{% if add_generation_prompt %}[gMASK]<sop>{% endif %}"
)
"""Rounds are counted from 0; a single question is asked as it is."""
CHATGLM2 = (
    f"{_IN_TURN}[gMASK]sop{{% for message in messages %}}"
    "{% if message['role'] == 'user' %}"
    "{{ '[Round ' ~ (loop.index0 // 2 + 1) ~ ']\\n\\n问：' ~ message['content'] ~ '\\n\\n答：' }}"
    "{% else %}{{ message['content'] ~ '\\n\\n' }}{% endif %}{% endfor %}"
)
