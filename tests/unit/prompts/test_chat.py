"""Chat templates: transformers' text, and nothing a hostile template can do beyond its row."""

import subprocess
import sys
import threading
from collections.abc import Iterator
from datetime import datetime
from typing import Any

import pytest

from mindbatch.io.children import AnsweringProcess, ProcessorTimeUsedUp
from mindbatch.io.errors import ConfigError, PromptError
from mindbatch.prompts.chat import ChatLimits, ChatTemplates
from shared_children import shared_chat_processes

QUICK = ChatLimits(seconds=0.5, memory_bytes=192 << 20, max_characters=100_000)
TALK = [
    {"role": "system", "content": "Be <brief> & “kind”."},
    {"role": "user", "content": "  你好, two\nlines "},
    {"role": "assistant", "content": "ok"},
    {"role": "user", "content": "bye"},
]
TOOLS = [{"type": "function", "function": {"name": "f", "description": "查 <b> it's"}}]
NAMED = {"bos_token": "<s>", "eos_token": "</s>", "additional_special_tokens": ["<a>"]}


SHAPES = {
    "chatml": """{% for message in messages %}
    {{- '<|im_start|>' + message['role'] + '\\n' + message['content'] }}
    {{- '<|im_end|>' + '\\n' }}
{% endfor %}
{% if add_generation_prompt %}{{ '<|im_start|>assistant\\n' }}{% endif %}
""",
    "llama3": """{{- bos_token }}
{%- if not date_string is defined %}
{%- set date_string = strftime_now('%d %b') %}
{%- endif %}
{{- 'Today: ' + date_string }}
{%- for message in messages %}
{{- '<|h|>' + message.role + '<|/h|>\\n\\n' + message.content | trim + '<|eot|>' }}
{%- endfor %}
{%- if add_generation_prompt %}{{- '<|h|>assistant<|/h|>\\n\\n' }}{%- endif %}
""",
    "mistral": """{%- if messages[0]['role'] == 'system' %}
    {%- set system = messages[0]['content'] %}
    {%- set loop_messages = messages[1:] %}
{%- else %}
    {%- set loop_messages = messages %}
{%- endif %}
{{- bos_token }}
{%- for m in loop_messages %}
    {%- if (m['role'] == 'user') != (loop.index0 % 2 == 0) %}
        {{- raise_exception('roles must alternate\\nuser and assistant') }}
    {%- endif %}
    {%- if m['role'] == 'user' %}
        {%- if loop.last and system is defined %}{{- '[I] ' + system + '\\n\\n' }}{%- endif %}
        {{- m['content'] + '[/I]' }}
    {%- else %}
        {{- ' ' + m['content'] + eos_token }}
    {%- endif %}
{%- endfor %}
""",
    "qwen": """{%- if tools %}
    {{- '<tools>' }}
    {%- for tool in tools %}
        {{- '\\n' }}
        {{- tool | tojson }}
    {%- endfor %}
    {{- tools | tojson(indent=2) }}
{%- endif %}
{%- set ns = namespace(last=-1, multi=true) %}
{%- for message in messages[::-1] %}
    {%- set index = (messages|length - 1) - loop.index0 %}
    {%- if ns.multi and message.role == 'user' and message.content is string %}
        {%- set ns.multi = false %}
        {%- set ns.last = index %}
    {%- endif %}
{%- endfor %}
{{- ns.last ~ (messages | map(attribute='role') | join(',')) }}
{%- if enable_thinking is defined and enable_thinking is false %}
    {{- '<think></think>' }}
{%- endif %}
""",
    "generation and break": """{% for m in messages %}
    {% if loop.index > 3 %}{% break %}{% endif %}
    {% if m.role == 'system' %}{% continue %}{% endif %}
    {% if m.role == 'assistant' %}
        {% generation %}
{{ m.content }}{{ eos_token }}
        {% endgeneration %}
    {% else %}
[{{ m.content }}]
    {% endif %}
{% endfor %}
""",
    "undefined names and lists": """{{ pad_token }}{{ documents }}
{% for t in additional_special_tokens %}{{ t }}{% endfor %}
{{ messages[0].content.upper()[:7] }}{{ messages | length }}
{{ {'b': 1, 'a': none} | tojson(sort_keys=true) }}
""",
}
"""Of the forms that models ship."""


@pytest.fixture(autouse=True, scope="module")
def _children_are_shared() -> Iterator[None]:
    with shared_chat_processes("mindbatch.prompts.chat"):
        yield


@pytest.fixture(scope="module")
def shared() -> ChatTemplates:
    return ChatTemplates({"default": "{{ messages[0].content }}"}, NAMED, QUICK)


def rendered(template: str, messages: Any = None, **variables: Any) -> str:
    chat = ChatTemplates({"default": template}, NAMED, ChatLimits())
    try:
        return chat.render(chat.adapted(messages or TALK), variables=variables)
    finally:
        chat.close()


def refused(template: str, limits: ChatLimits = QUICK) -> str:
    """The one line a hostile template gets; whatever it did, a harmless one must work afterwards."""
    chat = ChatTemplates({"default": template, "tool_use": "{{ messages[0].content }}"}, NAMED, limits)
    with pytest.raises(PromptError) as caught:
        chat.render(TALK)
    assert chat.render(TALK, variables={"tools": []}) == TALK[0]["content"]
    chat.close()
    assert len(caught.value.lines) == 1
    assert "\n" not in str(caught.value)
    assert len(str(caught.value)) < 400
    return str(caught.value)


@pytest.mark.needs("transformers")
@pytest.mark.parametrize(
    "variables", [{}, {"tools": TOOLS, "enable_thinking": False}], ids=["plain", "tools"]
)
@pytest.mark.parametrize("template", SHAPES.values(), ids=SHAPES)
def test_the_same_text_as_transformers(template: str, variables: dict[str, Any]):
    from transformers.utils.chat_template_utils import render_jinja_template

    for add_generation_prompt in (True, False):
        reference = {"tools": None, "documents": None, **variables, **NAMED}
        expected, _ = render_jinja_template(
            [TALK], chat_template=template, add_generation_prompt=add_generation_prompt, **reference
        )
        chat = ChatTemplates({"default": template}, NAMED)
        assert (
            chat.render(TALK, add_generation_prompt=add_generation_prompt, variables=variables) == expected[0]
        )


PARTS = {
    "texts only": ("{% for m in messages %}{{ m.role + m.content }}{% endfor %}", False),
    "whatever it gets": ("{% for m in messages %}{{ m.content }}{% endfor %}", False),
    "as JSON": ("{% for m in messages %}{{ m.content | tojson }}{% endfor %}", False),
    "both": (
        "{% for m in messages %}{% if m.content is string %}{{ m.content }}{% else %}"
        "{% for part in m.content %}<{{ part.text | trim }}>{% endfor %}{% endif %}{% endfor %}",
        True,
    ),
}


@pytest.mark.needs("transformers")
@pytest.mark.parametrize(("template", "as_parts"), PARTS.values(), ids=PARTS)
def test_parts_reach_the_templates_that_know_them(template: str, as_parts: bool):
    from transformers.utils.chat_template_utils import render_jinja_template

    parts = [{"type": "text", "text": "a "}, {"type": "text", "text": " b"}]
    messages = [{"role": "user", "content": parts if as_parts else "a  b"}]
    expected, _ = render_jinja_template([messages], chat_template=template)
    assert rendered(template, [{"role": "user", "content": parts}]) == expected[0]


def test_the_date():
    before, text, after = datetime.now(), rendered("{{ strftime_now('%Y-%m-%d') }}"), datetime.now()
    assert text in {f"{before:%Y-%m-%d}", f"{after:%Y-%m-%d}"}


@pytest.mark.parametrize("clock", ["%d %b %Y", "%H:%M:%S.%f", "%s", "%Z%z"])
def test_the_clock_stands_still_on_a_given_date(clock: str):
    chat = ChatTemplates({"default": f"{{{{ strftime_now('{clock}') }}}}"})
    given = datetime(2026, 7, 31)
    assert chat.render(TALK, date="2026-07-31") == given.strftime(clock)
    chat.close()


@pytest.mark.parametrize("chance", ["range(1000) | random", "lipsum()", "[range(99) | random, lipsum(1)]"])
def test_what_is_drawn_is_the_same_in_every_process(chance: str):
    template = f"{{{{ {chance} }}}}{{{{ {chance} }}}}"
    texts = []
    for _ in range(2):
        chat = ChatTemplates({"default": template})
        texts.append([chat.render([{"role": "user", "content": str(i)}]) for i in (1, 2, 1)])
        chat.close()
    assert texts[0] == texts[1]
    assert texts[0][0] == texts[0][2] != texts[0][1]


@pytest.mark.parametrize(
    "value", ["raise_exception", "messages | map('upper')", "cycler(1)", "messages[0].items"]
)
def test_what_differs_from_process_to_process_is_not_written(value: str):
    assert "writes a " in refused(f"{{{{ {value} }}}}")


def test_a_template_refuses_messages_in_its_own_words():
    message = refused(SHAPES["mistral"].replace("== 0", "== 1"))
    assert message == "chat template: roles must alternate user and assistant"


ESCAPES = [
    "{{ ''.__class__.__mro__[1].__subclasses__() }}",
    "{{ messages.__init__.__globals__ }}",
    "{{ raise_exception.__globals__['sys'].modules }}",
    "{{ self._TemplateReference__context.environment.globals }}",
    "{{ '{0.__class__.__init__.__globals__}'.format(strftime_now) }}",
    "{{ ''['__class__']['__base__'] }}",
    "{{ cycler.__init__.__globals__.os.getcwd() }}",
    "{% include '/etc/passwd' %}",
    "{% import 'os' as os %}",
    "{{ messages.append(1) }}",
    "{{ messages[0].update(content='x') }}",
]


@pytest.mark.parametrize("template", ESCAPES)
def test_attribute_escapes(template: str, shared: ChatTemplates):
    assert refused(template).startswith("chat template: ")


def test_a_hidden_attribute_is_undefined():
    template = "{{ (''|attr('__class__')) is defined }}{{ ''|attr('__class__')|attr('__mro__')|list }}"
    assert rendered(template) == "False[]"


LOOPS = [
    "{% for a in range(99999) %}{% for b in range(99999) %}{% endfor %}{% endfor %}",
    pytest.param("{{ 9 ** (9 ** 9) }}", marks=pytest.mark.slow),
    pytest.param("{% set n = 10 ** 8 %}{{ (n ** n) % 7 }}", marks=pytest.mark.slow),
]


@pytest.mark.fast_cases(1)
@pytest.mark.parametrize("template", LOOPS)
def test_endless_work_is_stopped(template: str):
    assert refused(template) == "chat template: stopped: no result after 0.5 s of processor time"


BIG = {
    "one string": "{{ 'x' * (10 ** 10) }}",
    "many strings": "{% for a in range(99999) %}{{ 'xxxxxxxxxx' * 100 }}{% endfor %}",
    "growing": "{% set n = namespace(s='xx') %}{% for i in range(60) %}{% set n.s = n.s ~ n.s %}{% endfor %}",
    "padded": "{{ '%1000000000d' % 1 }}",
    "list": "{{ ([1] * 10 ** 9) | length }}",
}


@pytest.mark.parametrize("template", BIG.values(), ids=BIG)
def test_giant_output_is_stopped(template: str):
    limits = ChatLimits(seconds=30, memory_bytes=QUICK.memory_bytes, max_characters=QUICK.max_characters)
    message = refused(template, limits)
    assert "needs more than 192 MiB" in message or "more than 100000 characters" in message


@pytest.mark.parametrize(
    ("template", "error"),
    [
        ("{% macro f() %}{{ f() }}{% endmacro %}{{ f() }}", "RecursionError"),
        ("{% for %}", "TemplateSyntaxError"),
    ],
)
def test_what_jinja_refuses_is_named(template: str, error: str):
    assert error in refused(template)


def test_the_longest_allowed_output():
    limits = ChatLimits(max_characters=1000)
    chat = ChatTemplates({"default": "{{ '😀' * messages[0].content | int }}"}, {}, limits)
    assert len(chat.render([{"role": "user", "content": "1000"}])) == 1000
    with pytest.raises(PromptError, match="more than 1000 characters"):
        chat.render([{"role": "user", "content": "1001"}])


def test_threads_get_their_own_answers(shared: ChatTemplates):
    right: list[str] = []

    def work(name: str) -> None:
        for i in range(50):
            text = shared.render([{"role": "user", "content": f"{name}{i}"}])
            right.extend([text] if text == f"{name}{i}" else [])

    threads = [threading.Thread(target=work, args=(name,)) for name in "abcd"]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert len(right) == 200


def test_named_templates_without_default():
    with pytest.raises(PromptError, match="no template is named default, only a, rag"):
        ChatTemplates({"rag": "x", "a": "y"}).render(TALK)


def test_the_child_imports_little():
    program = "import mindbatch.prompts.chat_worker, sys; print(*sys.modules)"
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=True)
    loaded = done.stdout.split()
    heavy = {"transformers", "tokenizers", "numpy", "mindspore", "asyncio"}
    assert not heavy & {name.partition(".")[0] for name in loaded}
    ours = {name for name in loaded if name.startswith("mindbatch")}
    assert ours == {
        "mindbatch",
        "mindbatch.io",
        "mindbatch.io.child_main",
        "mindbatch.prompts",
        "mindbatch.prompts.chat_worker",
    }


@pytest.mark.slow
def test_a_template_that_never_ends_costs_three_rows(monkeypatch: pytest.MonkeyPatch):
    def endless(process: AnsweringProcess, request: bytes, most_bytes: int) -> Any:
        raise ProcessorTimeUsedUp

    monkeypatch.setattr(AnsweringProcess, "ask", endless)
    chat = ChatTemplates({"default": "x"})
    for _ in range(2):
        with pytest.raises(PromptError, match="stopped: no result after 5 s of processor time$"):
            chat.render(TALK)
    with pytest.raises(ConfigError, match="^chat template: stopped: .*, for 3 consecutive rows$"):
        chat.render(TALK)
