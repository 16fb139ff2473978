"""Templates that write messages as the models' own do, as short as they can be put."""

import json
from typing import Any

import jinja2

# Variables: `content` and `reasoning`, empty where there is none, and `calls`, of names and arguments.
_HERMES_CALLS = """
{%- for name, arguments in calls %}{% if content or not loop.first %}{{ "\\n" }}{% endif -%}
<tool_call>{{ "\\n" }}{"name": "{{ name }}", "arguments": {{ json(arguments) }}}{{ "\\n" }}</tool_call>
{%- endfor %}"""
_THOUGHT = "{% if reasoning %}<think>{{ reasoning }}</think>{% endif %}{{ content }}"
_JSON_LIST = """[{% for name, arguments in calls -%}
{{ ", " if not loop.first }}{"name": "{{ name }}", "arguments": {{ json(arguments) }}}{% endfor %}]"""
TEMPLATES = {
    "hermes": "{{ content }}" + _HERMES_CALLS,
    "qwen3": "{% if reasoning %}<think>\n{{ reasoning }}\n</think>\n\n{% endif %}{{ content }}"
    + _HERMES_CALLS,
    "qwen3_coder": """<think>
{{ reasoning }}
</think>

{{ content }}
{%- for name, arguments in calls -%}
{{ "\\n\\n" if loop.first and content else "" if loop.first else "\\n" }}<tool_call>
<function={{ name }}>
{% for key, value in arguments.items() -%}
<parameter={{ key }}>
{{ json(value) if value is mapping or (value is sequence and value is not string) else value | string }}
</parameter>
{% endfor -%}
</function>
</tool_call>
{%- endfor %}""",
    "deepseek v3": _THOUGHT
    + """{% for name, arguments in calls -%}
{{ "<｜tool▁calls▁begin｜>" if loop.first else "\\n" }}<｜tool▁call▁begin｜>function<｜tool▁sep｜>{{ name }}
```json
{{ json(arguments) }}
```<｜tool▁call▁end｜>
{%- endfor %}{{ "<｜tool▁calls▁end｜>" if calls }}""",
    "deepseek v3.1": _THOUGHT
    + """{% for name, arguments in calls -%}
{{ "<｜tool▁calls▁begin｜>" if loop.first }}<｜tool▁call▁begin｜>{{ name }}<｜tool▁sep｜>
{{- json(arguments) }}<｜tool▁call▁end｜>
{%- endfor %}{{ "<｜tool▁calls▁end｜>" if calls }}""",
    "glm4": """
<think>{{ reasoning }}</think>{{ "\\n" + content if content }}
{%- for name, arguments in calls %}
<tool_call>{{ name }}
{% for key, value in arguments.items() -%}
<arg_key>{{ key }}</arg_key>
<arg_value>{{ value if value is string else json(value) }}</arg_value>
{% endfor -%}
</tool_call>
{%- endfor %}""",
    "llama3": """{% if not calls %}{{ content }}{% endif %}
{%- for name, arguments in calls %}{{ "; " if not loop.first }}
{{- '{"name": "' + name + '", "parameters": ' + json(arguments) + "}" }}
{%- endfor %}<|eot_id|>""",
    "mistral list": """{{ content }}{% if calls %}[TOOL_CALLS] [
{%- for name, arguments in calls -%}
{"name": "{{ name }}", "arguments": {{ json(arguments) }}, "id": "abcdefghi"}{{ ", " if not loop.last }}
{%- endfor %}]{% endif %}</s>""",
    "mistral": """{% if reasoning %}[THINK]{{ reasoning }}[/THINK]{% endif %}{{ content }}
{%- for name, arguments in calls %}[TOOL_CALLS]{{ name }}[ARGS]{{ json(arguments) }}{% endfor %}</s>""",
    "gpt_oss": """
{%- if reasoning %}<|channel|>analysis<|message|>{{ reasoning }}<|end|><|start|>assistant{% endif %}
{%- if content or not calls %}<|channel|>{{ "commentary" if calls else "final" }}<|message|>{{ content }}
{{- "<|end|><|start|>assistant" if calls else "<|return|>" }}{% endif %}
{%- for name, arguments in calls -%}
{{ "<|start|>assistant" if not loop.first }}<|channel|>commentary to=functions.{{ name }} <|constrain|>json
{{- "<|message|>" + json(arguments) }}<|call|>
{%- endfor %}""",
    "deepseek_v32": _THOUGHT
    + """{% if calls %}{{ "\\n\\n" if content }}<｜DSML｜function_calls>
{% for name, arguments in calls -%}
<｜DSML｜invoke name="{{ name }}">
{% for key, value in arguments.items() -%}
<｜DSML｜parameter name="{{ key }}" string="{{ json(value is string) }}">
{{- value if value is string else json(value) }}</｜DSML｜parameter>
{% endfor -%}
</｜DSML｜invoke>
{% endfor -%}
</｜DSML｜function_calls>{% endif %}""",
    "kimi_k2": _THOUGHT
    + """{% for name, arguments in calls -%}
{{ "<|tool_calls_section_begin|>" if loop.first }}<|tool_call_begin|>functions.{{ name }}:{{ loop.index0 }}
{{- "<|tool_call_argument_begin|>" + json(arguments) }}<|tool_call_end|>
{%- endfor %}{{ "<|tool_calls_section_end|>" if calls }}<|im_end|>""",
    "lfm2": _THOUGHT
    + """{% for name, arguments in calls -%}
{{ "<|tool_call_start|>[" if loop.first else ", " }}{{ name }}({% for key, value in arguments.items() -%}
{{ ", " if not loop.first }}{{ key }}={{ python(value) }}{% endfor %})
{%- endfor %}{{ "]<|tool_call_end|>" if calls }}<|im_end|>""",
    "olmo3": _THOUGHT
    + """{% for name, arguments in calls -%}
{{ "<function_calls>" if loop.first }}
{{ name }}({% for key, value in arguments.items() -%}
{{ ", " if not loop.first }}{{ key }}={{ json(value) if value is not string else python(value) }}
{%- endfor %})
{%- endfor %}{{ "\\n</function_calls>" if calls }}""",
    "pythonic": """{% if not calls %}{{ content }}{% endif %}
{%- for name, arguments in calls -%}
{{ "[" if loop.first else ", " }}{{ name }}({% for key, value in arguments.items() -%}
{{ ", " if not loop.first }}{{ key }}={{ python(value) }}{% endfor %})
{%- endfor %}{{ "]" if calls }}<|eot_id|>""",
    "seed_oss": """{% if reasoning %}<seed:think>{{ reasoning }}</seed:think>{% endif %}{{ content }}
{%- for name, arguments in calls %}
<seed:tool_call>
<function={{ name }}>
{% for key, value in arguments.items() -%}
<parameter={{ key }}>{{ value if value is string else json(value) }}</parameter>
{% endfor -%}
</function>
</seed:tool_call>
{%- endfor %}""",
    "minimax_m2": _THOUGHT
    + """{% if calls %}
<minimax:tool_call>
{% for name, arguments in calls -%}
<invoke name="{{ name }}">
{% for key, value in arguments.items() -%}
<parameter name="{{ key }}">{{ value if value is string else json(value) }}</parameter>
{% endfor -%}
</invoke>
{% endfor -%}
</minimax:tool_call>{% endif %}""",
    "granite": _THOUGHT + "{% if calls %}<|tool_call|>" + _JSON_LIST + "{% endif %}<|end_of_text|>",
    "hunyuan": _THOUGHT + "{% if calls %}<tool_calls>" + _JSON_LIST + "</tool_calls>{% endif %}",
    "hunyuan dense": _THOUGHT
    + """{% for name, arguments in calls -%}
{{ "<tool_calls>" if loop.first else "\\n" }}<tool_call>{{ name }}
```json
{{ json(arguments) }}
```</tool_call>
{%- endfor %}{{ "</tool_calls>" if calls }}""",
    "nemotron": _THOUGHT + "{% if calls %}<TOOLCALL>" + _JSON_LIST + "</TOOLCALL>{% endif %}",
    "functools": "{{ content }}{% if calls %}functools" + _JSON_LIST + "{% endif %}",
    "cohere": """{% if reasoning %}<|START_THINKING|>{{ reasoning }}<|END_THINKING|>{% endif %}
{%- if content or not calls %}<|START_RESPONSE|>{{ content }}<|END_RESPONSE|>{% endif %}
{%- for name, arguments in calls -%}
{{ "<|START_ACTION|>[" if loop.first else "," }}
    {"tool_call_id": "{{ loop.index0 }}", "tool_name": "{{ name }}", "parameters": {{ json(arguments) }}}
{%- endfor %}{{ "\\n]<|END_ACTION|>" if calls }}<|END_OF_TURN_TOKEN|>""",
    "command_r": """{{ content }}{% for name, arguments in calls -%}
{{ "\\nAction:\\n```json\\n[" if loop.first else "," }}
    {
        "tool_name": "{{ name }}",
        "parameters": {{ json(arguments) }}
    }
{%- endfor %}{{ "\\n]```" if calls }}""",
    "apertus": """{% if reasoning %}<|inner_prefix|>{{ reasoning }}<|inner_suffix|>{% endif %}{{ content }}
{%- for name, arguments in calls -%}
{{ "<|tools_prefix|>[" if loop.first else ", " }}{"{{ name }}": {{ json(arguments) }}}
{%- endfor %}{{ "]<|tools_suffix|>" if calls }}<|assistant_end|>""",
    "gemma4": """{% if reasoning %}<|channel>thought
{{ reasoning }}<channel|>{% endif %}{{ content }}
{%- for name, arguments in calls -%}
<|tool_call>call:{{ name }}{{ "{" }}{% for key, value in arguments.items() -%}
{{ "," if not loop.first }}{{ key }}:{{ gemma(value) }}{% endfor %}{{ "}" }}<tool_call|>
{%- endfor %}<turn|>""",
    "glm": """{% if not calls %}{{ content }}{% endif %}{% for name, arguments in calls -%}
{{ "<|assistant|>" if not loop.first }}{{ name }}
{{ json(arguments) }}
{%- endfor %}<|observation|>""",
    "gigachat": """{{ content }}{% for name, arguments in calls -%}
<|function_call|>{"name": "{{ name }}", "arguments": {{ json(arguments) }}}<|message_sep|>
{%- endfor %}""",
}


def written(name: str, **variables: Any) -> str:
    """The message that a template writes."""
    return (
        jinja2.Environment()
        .from_string(TEMPLATES[name])
        .render(json=_json, python=repr, gemma=_gemma, **variables)
    )


def _json(value: Any) -> str:
    return json.dumps(value, ensure_ascii=False)


def _gemma(value: Any) -> str:
    """A value as Gemma 4 writes it: strings between tokens, all else as in JSON."""
    if isinstance(value, str):
        return f'<|"|>{value}<|"|>'
    if isinstance(value, list):
        return f"[{','.join(map(_gemma, value))}]"
    if isinstance(value, dict):
        return f"{{{','.join(f'{_gemma(key)}:{_gemma(item)}' for key, item in value.items())}}}"
    return "None" if value is None else _json(value)
