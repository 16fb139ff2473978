"""EXECUTE_ORDER: its words, what is recognised in it, and what INPUT_DATA and a script add to it."""

import shutil
import sys
from pathlib import Path

import pytest

from mindbatch.launch.scripts import execute_order
from mindbatch.launch.scripts.execute_order import ExecuteOrder, read_order, with_input, with_launch

TOOL = Path(__file__).parents[4] / "tools/generate_custom.py"
OWN = (sys.executable, "-I", "-m", "mindbatch")


def order_of(text: str) -> ExecuteOrder:
    faults: list[str] = []
    order = read_order(text, faults)
    assert faults == []
    return order


def given_input(text: str, data: str | None) -> tuple[ExecuteOrder, list[str], list[str]]:
    notes: list[str] = []
    faults: list[str] = []
    return with_input(order_of(text), data, notes, faults), notes, faults


@pytest.mark.parametrize(
    ("text", "arguments"),
    [
        ('ls \'a b\' "c \\"d\\"" e\\ f', ("a b", 'c "d"', "e f")),
        (
            "ls $(touch x) `y`; rm -rf / && z | w > v &",
            ("$(touch", "x)", "`y`;", "rm", "-rf", "/", "&&", "z", "|", "w", ">", "v", "&"),
        ),
        ("ls * ~ ?[a] $HOME -x # no comment", ("*", "~", "?[a]", "$HOME", "-x", "#", "no", "comment")),
        ("ls 'two\nlines' ''", ("two\nlines", "")),
    ],
)
def test_words_are_those_of_a_shell_and_nothing_is_evaluated(text: str, arguments: tuple[str, ...]) -> None:
    assert order_of(text) == ExecuteOrder(("ls",), arguments)


@pytest.mark.parametrize(
    ("text", "fault"),
    [
        ("", "EXECUTE_ORDER: holds no command"),
        ("  \n", "EXECUTE_ORDER: holds no command"),
        ("ls 'a", 'EXECUTE_ORDER "ls \'a": no closing quotation; it is split as a shell would'),
        ("nosuch -x", "EXECUTE_ORDER 'nosuch -x': 'nosuch' is no program"),
        (
            "X=1 ls",
            "EXECUTE_ORDER 'X=1 ls': 'X=1' is no program; set variables before the script: export X=1",
        ),
        ("/etc/passwd", "EXECUTE_ORDER '/etc/passwd': '/etc/passwd' is no program"),
    ],
)
def test_what_is_no_command_is_refused(text: str, fault: str) -> None:
    faults: list[str] = []
    read_order(text, faults)
    assert faults == [fault]


@pytest.mark.parametrize(
    ("text", "program", "kind"),
    [
        ("mindbatch generate a=b", OWN, "mindbatch"),
        (f"{sys.executable} -m mindbatch generate a=b", (sys.executable, "-m", "mindbatch"), "mindbatch"),
        (f"{sys.executable} {TOOL} generate a=b", (sys.executable, "-I", str(TOOL)), "generate_custom"),
        ("env generate a=b", ("env",), "other"),
    ],
)
def test_programs_of_ours_are_known(text: str, program: tuple[str, ...], kind: str) -> None:
    order = order_of(text)
    assert (order.program, order.arguments, order.kind) == (program, ("generate", "a=b"), kind)


@pytest.mark.parametrize("text", ["train.py --x", "python train.py --x", "python3 train.py --x"])
@pytest.mark.parametrize("named", [None, "any"])
def test_python_is_the_one_that_is_named_else_that_of_path_else_ours(
    text: str, named: str | None, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "train.py").touch()
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("PATH", str(tmp_path))
    monkeypatch.delenv("PYTHON", raising=False)
    assert order_of(text).words == (sys.executable, "train.py", "--x")
    for name in ("python", "python3"):
        (tmp_path / name).touch(mode=0o755)
    if named is not None:
        monkeypatch.setenv("PYTHON", named)
    name = "python3" if text.startswith("python3") else "python"
    program = str(tmp_path / name) if named is None else sys.executable
    assert order_of(text).words == (program, "train.py", "--x")


@pytest.mark.parametrize("python", ["", "python ", "python3 ", f"{sys.executable} "])
@pytest.mark.parametrize(
    ("file", "hint"), [("train.py", ""), ("a/generate_custom.py", f"; this project's is {TOOL}")]
)
def test_a_python_file_that_is_not_there_is_told(
    python: str, file: str, hint: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    faults: list[str] = []
    read_order(f"{python}{file} --x", faults)
    (fault,) = faults  # a long order is shortened
    assert fault.startswith(f"EXECUTE_ORDER '{python}{file}"[:60])
    assert fault.endswith(f": '{file}': no such file{hint}")
    for other in ("echo train.py", f"{sys.executable} -m nosuch.py", f"{sys.executable} -c pass nosuch.py"):
        order_of(other)


def test_a_copy_of_generate_custom_is_ours_and_that_of_mindformers_is_not(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    copy = Path(shutil.copy(TOOL, tmp_path))
    # A light installation or a wheel: the package is not in the checkout.
    monkeypatch.setattr(execute_order, "_GENERATE_CUSTOM", tmp_path / "tools/generate_custom.py")
    order, notes, _ = given_input(f"python {copy} --model_type x", None)
    assert (order.program, order.kind, notes) == ((sys.executable, "-I", str(copy)), "generate_custom", [])
    copy.write_text("import mindformers")
    order, notes, _ = given_input(f"{sys.executable} {copy} --model_type x", None)
    assert (order.words[1:], order.kind) == ((str(copy), "--model_type", "x"), "other")
    assert notes == ["generate_custom.py is not MindBatch's: it is run on each rank, as it is"]


@pytest.mark.parametrize(
    ("text", "data", "arguments"),
    [
        ("env show --a b", "-x $(y)", ("show", "--a", "b", "--input_data", "-x $(y)")),
        ("env show", 'two\nlines "q"', ("show", "--input_data", 'two\nlines "q"')),
        ("env show", "${oc.env:HOME}", ("show", "--input_data", "${oc.env:HOME}")),
        ("env show", None, ("show",)),
        ("env show", "", ("show",)),
        ("mindbatch generate a=b", '-1 "${x}"', ('prompts=["-1 \\"\\\\${x}\\""]', "generate", "a=b")),
        (f"python3 {TOOL} --model_type x", "-1", ("--input_data=-1", "--model_type", "x")),
    ],
)
def test_a_text_is_given_to_the_letter(text: str, data: str | None, arguments: tuple[str, ...]) -> None:
    order, notes, faults = given_input(text, data)
    assert (order.arguments, notes, faults) == (arguments, [], [])


def test_generate_gets_a_path_as_the_file_of_its_prompts(tmp_path: Path) -> None:
    file = tmp_path / "my ${prompts}.txt"
    file.write_text("one")
    order, _, _ = given_input("mindbatch compare a=b", str(file))
    assert order.arguments[0] == f'prompts_file="{tmp_path}/my \\${{prompts}}.txt"'


def test_prompts_from_two_places_are_refused() -> None:
    *_, faults = given_input("""mindbatch generate 'prompts=["a"]' prompts_file=b""", "text")
    assert faults == [
        f"INPUT_DATA and {key}= in EXECUTE_ORDER: only one of them can be given"
        for key in ("prompts", "prompts_file")
    ]


def test_a_task_without_prompts_leaves_it_out_and_says_so() -> None:
    order, notes, _ = given_input("mindbatch batch data.path=x", "text")
    assert order.arguments == ("batch", "data.path=x")
    assert notes == ["INPUT_DATA: has no effect; only mindbatch generate and compare take it"]


def test_what_a_script_says_of_the_launch_goes_before_and_is_not_given_twice() -> None:
    faults: list[str] = []
    values = {"launcher": "rank_table", "rank_table": "a, ${b}.json", "worker_num": 2}
    order = with_launch(order_of("mindbatch generate launch.max_restarts=1"), "x.sh", values, faults)
    assert order.arguments == (
        'launch.launcher="rank_table"',
        'launch.rank_table="a, \\${b}.json"',
        "launch.worker_num=2",
        "generate",
        "launch.max_restarts=1",
    )
    assert faults == []
    with_launch(order_of("mindbatch generate launch=ray +launch.worker_num=3"), "x.sh", values, faults)
    assert faults == [
        "EXECUTE_ORDER: launch= is given by x.sh",
        "EXECUTE_ORDER: launch.worker_num= is given by x.sh",
    ]
