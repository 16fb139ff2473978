"""Chat templates of the shapes that models ship, written for these tests."""

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
