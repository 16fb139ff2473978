"""data.template: columns in, a prompt out; whatever a template or a column does, it ends within its row."""

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from mindbatch.dataset.data_config import DataConfig
from mindbatch.dataset.records import Record
from mindbatch.dataset.rows import DataRow, RowFailure, RowMaker
from mindbatch.dataset.template import LONGEST_TEMPLATE, template_source
from mindbatch.decoding import DecodingParams
from mindbatch.io.children import ProcessorTimeUsedUp
from mindbatch.io.errors import ConfigError
from mindbatch.prompts.chat import ChatLimits, ChatProcess
from shared_children import shared_chat_processes

QUICK = ChatLimits(seconds=0.5, memory_bytes=192 << 20, max_characters=100_000)
PATIENT = ChatLimits(seconds=30.0, memory_bytes=192 << 20, max_characters=100_000)


@pytest.fixture(autouse=True, scope="module")
def _children_are_shared() -> Iterator[None]:
    with shared_chat_processes("mindbatch.dataset.template"):
        yield


def maker_of(template: str, limits: ChatLimits = QUICK) -> RowMaker:
    return RowMaker(DataConfig(template=template), DecodingParams(), False, limits)


def rendered(template: str, **columns: Any) -> str:
    maker = maker_of(template, PATIENT)
    item = maker.make(0, Record("rows.jsonl", 1, columns))
    maker.close()
    assert isinstance(item, DataRow), item
    return str(item.content["text"])


def refused(template: str, limits: ChatLimits = QUICK, **columns: Any) -> RowFailure:
    """The failure of a row; the same template must work for the next row, which sets `fine`."""
    maker = maker_of(f"{{% if fine is defined %}}ok{{% else %}}{template}{{% endif %}}", limits)
    item = maker.make(0, Record("rows.jsonl", 1, columns))
    following = maker.make(1, Record("rows.jsonl", 2, {"fine": 1}))
    maker.close()
    assert isinstance(following, DataRow)
    assert following.content == {"text": "ok"}
    assert isinstance(item, RowFailure), item
    assert (item.key, item.line) == ("0", 1)
    assert item.reason.startswith("data.template: ")
    assert "\n" not in item.reason
    return item


PROMPTS: dict[str, tuple[str, dict[str, Any], str]] = {
    "column": ("Q: {{ question }}\nA:", {"question": "why?"}, "Q: why?\nA:"),
    "number": ("{{ n + 1 }}", {"n": 41}, "42"),
    "nested": ("{{ a.b[1] }}", {"a": {"b": [1, 2]}}, "2"),
    "loop": (
        "{% for s in shots %}\n- {{ s }}\n{% endfor %}\n{{ q }}",
        {"shots": ["a", "b"], "q": 1},
        "- a\n- b\n1",
    ),
    "names that are none in jinja2": ("{{ row['a b'] }}", {"a b": "x"}, "x"),
    "a column named row": ("{{ row }}", {"row": "x", "y": 1}, "x"),
    "columns named like the sandbox's own": (
        "{{ self_ }}{{ range }}{{ x }}",
        {"self": 1, "self_": 2, "range": 3, "x": 4},
        "234",
    ),
    "default": ("{{ a | default('none') }}", {"b": 1}, "none"),
    "null or": ("x{{ a or '' }}", {"a": None}, "x"),
    "tojson": ("{{ a | tojson }}", {"a": {"k": "<é>"}}, '{"k": "<é>"}'),
    "no autoescape": ("{{ a }}", {"a": "<b> & 'c'"}, "<b> & 'c'"),
    "unicode": ("今天 {{ a }}", {"a": "\u2028😀"}, "今天 \u2028😀"),
}


@pytest.mark.parametrize(("template", "columns", "text"), PROMPTS.values(), ids=PROMPTS)
def test_prompts(template: str, columns: dict[str, Any], text: str):
    assert rendered(template, **columns) == text


@pytest.mark.parametrize(
    "text", ["{{ 7 * 7 }}", "{% for %}", "{# x #}", "{{ ''.__class__ }}", "<|endoftext|>"]
)
def test_a_column_is_only_text(text: str):
    assert rendered("{{ a }}!", a=text) == f"{text}!"


MISSING: list[tuple[str, dict[str, Any], str]] = [
    (
        "{{ qestion }}",
        {"question": 1, "id": 2},
        "data.template: no column qestion; the row has question, id; did you mean question?",
    ),
    ("{% if context %}{% endif %}", {"q": 1}, "data.template: no column context; the row has q"),
    ("{% for s in shots %}{{ s }}{% endfor %}", {}, "data.template: no column shots; the row has none"),
    ("{{ strftime_now('%Y') }}", {}, "data.template: no column strftime_now; the row has none"),
    (
        "{{ row['two wrds'] }}",
        {"two words": 1, "a": 2},
        "data.template: no column 'two wrds'; the row has 'two words', a; did you mean two words?",
    ),
]


@pytest.mark.parametrize(("template", "columns", "said"), MISSING)
def test_missing_columns(template: str, columns: dict[str, Any], said: str):
    item = refused(template, **columns)
    assert item.reason.startswith(said)
    assert item.stage == "row"


FAULTS: list[tuple[str, dict[str, Any], str]] = [
    ("{{ a }}", {"a": None}, "a value is null; write {{ name or '' }} to allow it"),
    ("{{ a.b }}", {"a": {}}, "'dict object' has no attribute 'b'"),
    ("{{ a + 1 }}", {"a": "x"}, "TypeError"),
    ("{{ raise_exception('no answer in ' ~ a) }}", {"a": 5}, "data.template: no answer in 5"),
    ("{{ a }}", {"a": ""}, "data.template: the prompt is empty"),
    ("{{ a }}\\ud83d{{ '\\ud83d' }}", {"a": ""}, "its output is not valid Unicode: lone surrogate U+D83D"),
]


@pytest.mark.parametrize(("template", "columns", "said"), FAULTS)
def test_rows_that_a_template_cannot_use(template: str, columns: dict[str, Any], said: str):
    item = refused(template, **columns)
    assert said in item.reason
    assert item.stage == "prompt"


ESCAPES = [
    "{{ row.a.__class__.__base__ }}",
    "{{ (a|attr('__class__')).__base__ }}",
    "{{ row.update(a='x') }}",
    "{{ a.append(1) }}",
]
"""Those of columns; the sandbox is that of chat templates, whose tests have the others."""


@pytest.mark.parametrize("template", ESCAPES)
def test_attribute_escapes(template: str):
    assert refused(template, a=[]).stage == "prompt"


ENDLESS = "{% for x in range(n) %}{% for y in range(n) %}{% if x == n %}{% endif %}{% endfor %}{% endfor %}"


@pytest.mark.slow
def test_an_endless_row():
    reason = refused(ENDLESS, n=99999).reason
    assert reason == "data.template: stopped: no result after 0.5 s of processor time"


def test_a_giant_row():
    assert "192 MiB" in refused("{{ ([1] * n) | length }}", PATIENT, n=10**10).reason


def test_a_giant_or_nested_column():
    assert refused("{{ a }}", a="x" * 200_000).reason == "data.template: produced more than 100000 characters"
    deep: Any = 1
    for _ in range(20_000):  # beyond what any library in the process may have raised the limit to
        deep = [deep]
    assert "not plain JSON" in refused("{{ a }}", a=deep).reason


BROKEN: dict[str, tuple[str, str]] = {
    "syntax": ("Q: {{ question }\nA:", "TemplateSyntaxError in line 1: "),
    "third line": ("a\nb\n{% endfor %}", "TemplateSyntaxError in line 3: "),
    "filter": ("{{ a | frobnicate }}", "No filter named 'frobnicate'"),
    "chance": ("{{ [a, b] | random }}", "No filter named 'random'"),
    "no column": ("Q: {question}", "names no column, so every row would be the same; write {{ question }}"),
    "endless": ("{{ 9 ** (9 ** 9) }}", "stopped: no result after 0.5 s of processor time"),
}


@pytest.mark.parametrize(("template", "said"), BROKEN.values(), ids=BROKEN)
def test_a_template_that_fits_no_row(template: str, said: str):
    with pytest.raises(ConfigError) as caught:
        maker_of(template)
    assert len(caught.value.lines) == 1
    assert str(caught.value).startswith("data.template: ")
    assert said in str(caught.value)


def test_three_timeouts_in_a_row_are_the_templates_fault(monkeypatch: pytest.MonkeyPatch):
    """A row between them that is rendered, or fails in another way, shows that the template can end."""
    maker = maker_of("{{ ends }}", PATIENT)
    assert maker._template is not None
    process = maker._template._process._process
    ask = process.ask

    def bounded(request: bytes, most_bytes: int) -> Any:
        if b"never" in request:
            raise ProcessorTimeUsedUp
        return ask(request, most_bytes)

    monkeypatch.setattr(process, "ask", bounded)
    for ends in ("never", "never", "now", "never", "never", None, "never", "never"):
        item = maker.make(0, Record("rows.jsonl", 1, {"ends": ends}))
        assert isinstance(item, DataRow if ends == "now" else RowFailure)
    with pytest.raises(
        ConfigError,
        match="^data.template: stopped: no result after 30 s of processor time, for 3 consecutive rows$",
    ):
        maker.make(0, Record("rows.jsonl", 1, {"ends": "never"}))
    maker.close()


def test_one_child_serves_all_rows_and_close_ends_it(monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr("mindbatch.dataset.template.ChatProcess", ChatProcess)
    maker = maker_of("{{ a }}")
    assert maker._template is not None
    first = maker._template._process._process._child
    for i in range(3):
        maker.make(i, Record("rows.jsonl", i, {"a": "x"}))
    assert maker._template._process._process._child is first
    maker.close()
    assert maker._template._process._process._child is None


def test_only_the_columns_that_are_used_travel():
    maker = maker_of("{{ a }}{{ c is defined }}")
    assert maker._template is not None
    assert maker._template._variables({"a": 1, "b": 2}) == {"a": 1}
    maker.close()


def test_a_template_of_a_file(tmp_path: Path):
    path = tmp_path / "few_shot.jinja"
    path.write_bytes("\ufeffQ: {{ q }}\r\nA:\n".encode())
    maker = RowMaker(DataConfig(template_file=str(path)), DecodingParams(), False, PATIENT)
    item = maker.make(0, Record("rows.jsonl", 1, {"q": "今"}))
    missing = maker.make(0, Record("rows.jsonl", 1, {"qq": "今"}))
    maker.close()
    assert isinstance(item, DataRow)
    assert item.content == {"text": "Q: 今\nA:"}
    assert isinstance(missing, RowFailure)
    assert missing.reason == "data.template_file: no column q; the row has qq; did you mean qq?"


def test_bad_template_files(tmp_path: Path):
    for name, content, said in [
        ("latin.jinja", b"caf\xe9", "not valid UTF-8: byte 0xe9 at position 3"),
        ("long.jinja", b"x" * (LONGEST_TEMPLATE + 1), "is longer than 1048576 bytes"),
        ("absent.jinja", None, "cannot be read: No such file or directory"),
    ]:
        path = tmp_path / name
        if content is not None:
            path.write_bytes(content)
        with pytest.raises(ConfigError) as caught:
            template_source(DataConfig(template_file=str(path)))
        assert str(caught.value).startswith(f"data.template_file={path}: {said}")
