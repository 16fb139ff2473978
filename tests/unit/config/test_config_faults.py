"""Every mistake in a configuration is refused by name, with the near name; all are reported at once."""

import json
import os
import sys
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from mindbatch.config.model_schema import ParallelConfig
from mindbatch.io.errors import ConfigError
from mindbatch.model_spec.registry import MODEL_TYPES
from task_configs import config_of, faults


def test_usable_overrides_have_no_fault(usable: tuple[str, str], model_folder: Path) -> None:
    config = config_of("generate", *usable)
    assert config.model.checkpoint_name_or_path == str(model_folder)
    assert config.prompts == "Hi"


@pytest.mark.parametrize(
    ("override", "expected"),
    [
        ("decoding.top_pp=0.9", "decoding.top_pp: unknown key; did you mean decoding.top_p?"),
        ("top_p=0.9", "top_p: unknown key; did you mean decoding.top_p?"),
        ("modle.batch_size=2", "modle.batch_size: unknown key; did you mean model.batch_size?"),
        ("modle=tiny_gpt2", "modle: unknown key; did you mean model?"),
        ("+decoding.top_pp=0.9", "decoding.top_pp: unknown key; did you mean decoding.top_p?"),
        ("++zzzzzz=1", "zzzzzz: unknown key"),
        ("decoding.tempratur=[0,8)", "decoding.tempratur: unknown key; did you mean decoding.temperature?"),
        ("=3", "=3: has no key; write key=value"),
        ("runtime.num_threads=257", "runtime.num_threads=257: must be a whole number, from 1 to 256"),
        (
            "runtime.max_batched_tokens=0",
            "runtime.max_batched_tokens=0: must be a whole number, at least 1",
        ),
        ("prompts.x=1", "prompts.x: unknown key"),
        ("decoding.top_k=many", "decoding.top_k=many: must be a whole number"),
        ("decoding.top_k=1.5", "decoding.top_k=1.5: must be a whole number"),
        ("decoding.top_k=true", "decoding.top_k=true: must be a whole number"),
        ("decoding.top_p=[1]", "decoding.top_p=[1]: must be a number"),
        ("decoding.do_sample=3", "decoding.do_sample=3: must be true or false"),
        ("model.hub=true", "model.hub=true: must be one of huggingface, modelscope"),
        ("model.batch_size=null", "model.batch_size=null: must be a whole number, at least 1"),
        ("decoding.max_length=x", "decoding.max_length=x: must be a whole number or null"),
        ("model.batch_size=0", "model.batch_size=0: must be a whole number, at least 1"),
        (
            "model.seq_length=3000000000",
            "model.seq_length=3000000000: must be at most 2147483647",
        ),
        ("runtime.block_size=7", "runtime.block_size=7: must be one of 8, 16, 32, 64, 128"),
        (
            "model.type=llamma",
            f"model.type=llamma: must be one of auto, {', '.join(MODEL_TYPES)}; did you mean llama?",
        ),
        (
            "runtime.device_target=cpu",
            "runtime.device_target=cpu: must be one of CPU, Ascend; did you mean CPU?",
        ),
        ("decoding.top_p=1.5", "decoding.top_p=1.5: must be above 0 and at most 1"),
        ("~model.type=llama", "~model.type=llama: write ~model.type, without a value, for its default"),
        ("~model.tipe", "~model.tipe: unknown key; did you mean model.type?"),
        (
            "hydra.run.dir=/tmp",
            "hydra.run.dir: Hydra's own settings are fixed here; "
            "--multirun, --cfg and --config-name are flags",
        ),
        (
            "model._target_=os.system",
            "model._target_: names that begin with _ are special to Hydra and not allowed",
        ),
        (
            "messages=[{_target_: os.system}]",
            "messages: names that begin with _ are special to Hydra and not allowed",
        ),
        (
            "model@x=auto",
            "Could not override 'model@x'. Did you mean to override model? "
            "To append to your default list use +model@x=auto",
        ),
        ("+model@x=auto", "x: unknown key"),
        (
            "decoding.seed=1,2",
            "decoding.seed=1,2: several values need --multirun; for one value, quote a text "
            "that holds commas or special characters: decoding.seed='\"1,2\"'",
        ),
        (
            "model.type",
            "model.type: must be KEY=VALUE; a text with spaces is quoted: 'prompts=Hi model.type'",
        ),
        (
            "output=json",
            "output=json: must be values for its keys: output.format, output.file, output.overwrite, "
            "output.private",
        ),
        (
            "decoding=null",
            "decoding=null: must be the name of an option (decoding=NAME) or values for its keys: "
            "decoding.do_sample, decoding.temperature, decoding.top_k, decoding.top_p and 48 more, which "
            "--help=decoding lists",
        ),
        (
            "parallel.device_map=[1,null]",
            "parallel.device_map=[1, null]: must be auto, a list with the number"
            " of layers of each stage, or null",
        ),
        (
            "parallel.device_map=[2]",
            "parallel.device_map=[2]: has no effect with parallel.pipeline_stage=1; remove it, or ask for "
            "more stages",
        ),
        ("system=Hi", "system=Hi: has no effect with chat=false; set chat=true, give messages or remove it"),
        ("prompts_file=-", "prompts, prompts_file: only one of these can be given"),
        ("interactive=true", "prompts, interactive: only one of these can be given"),
        (
            "model.dtype=float17",
            "model.dtype=float17: must be one of auto, float32, float16, bfloat16; did you mean float16?",
        ),
        ("model.seq_length=???", "model.seq_length=???: ??? stands for a value that must be given; set one"),
    ],
)
def test_one_mistake_has_one_fault(override: str, expected: str, usable: tuple[str, str]) -> None:
    assert faults(*usable, override) == (expected,)


def test_a_text_that_was_not_quoted_is_told_how_to_be(usable: tuple[str, str]) -> None:
    given = [usable[0], "prompts=One, two", "and", "three", "stream=true", "more"]
    assert faults(*given)[-2:] == (
        "and three: must be KEY=VALUE; a text with spaces is quoted: 'prompts=One, two and three'",
        "more: must be KEY=VALUE",
    )


def test_a_model_that_has_no_key_is_told_which(model_folder: Path) -> None:
    (line, *_) = faults(str(model_folder), "prompts=Hi")
    assert line.endswith(
        f"must be KEY=VALUE; a model is given as model.checkpoint_name_or_path={model_folder}"
    )
    assert faults("x" * 9000, "prompts=Hi")[0].endswith("must be KEY=VALUE")


def test_a_prompt_with_a_comma_is_told_how_to_be_quoted(usable: tuple[str, str]) -> None:
    (line,) = faults(usable[0], "prompts=One, two")
    assert line.endswith("""prompts='["One, two"]'""")
    config = config_of("generate", usable[0], 'prompts=["One, two"]')
    assert config.prompts == ["One, two"]


@pytest.mark.parametrize(
    "text", ["It's", "Be brief, please", "Q: {{ question }} A:", "{{ q }}", "a: {b", "=x"]
)
def test_a_text_that_the_grammar_cannot_read_is_taken_to_the_letter(
    usable: tuple[str, str], text: str
) -> None:
    config = config_of("generate", *usable, f"system={text}", "chat=true")
    assert config.system == text


def test_what_the_grammar_cannot_read_is_told_how_to_be_quoted(usable: tuple[str, str]) -> None:
    for text in ("'It's", '"a" b', "${x} ${"):
        (line,) = faults(*usable, f"system={text}", "chat=true")
        assert line.startswith(f"system={text}: ")
        assert "chat" not in line
    (line,) = faults(usable[0], "prompts=[1,")
    assert "check the brackets" in line


@pytest.fixture
def recursion_limit() -> Iterator[None]:
    """Python's own: MindSpore raises it where other tests import it, and the parser goes to the bottom."""
    limit = sys.getrecursionlimit()
    sys.setrecursionlimit(1000)
    yield
    sys.setrecursionlimit(limit)


@pytest.mark.usefixtures("recursion_limit")
def test_deep_nesting_and_long_numbers_are_refused(usable: tuple[str, str]) -> None:
    for value in ("[" * 1500 + "]" * 1500, "9" * 5000):
        (line,) = faults(usable[0], f"prompts={value}")
        assert "cannot be read" in line or "must be prompt, list of prompts or null" in line
        assert len(line) < 300


@pytest.mark.parametrize(
    ("given", "fault"),
    [
        ("quick", "must be auto, a list with the number of layers of each stage, or null"),
        ("[3,0]", "must be auto, a list with the number of layers of each stage, or null"),
        ("[3,true]", "must be auto, a list with the number of layers of each stage, or null"),
        ("[1,2,3]", "has 3 numbers; needed is one for each of parallel.pipeline_stage=2"),
    ],
)
def test_layers_that_no_model_has_so(given: str, fault: str, usable: tuple[str, str]) -> None:
    [found] = faults(*usable, "parallel.pipeline_stage=2", f"parallel.device_map={given}")
    assert found.startswith("parallel.device_map=")
    assert found.endswith(fault)


def test_on_one_process_a_device_map_of_auto_is_that_process(usable: tuple[str, str]) -> None:
    assert config_of("generate", *usable, "parallel.device_map=auto").parallel.device_map == "auto"
    assert ParallelConfig(device_map="auto").layer_counts is None


def test_all_that_ranks_do_not_divide_is_told_at_once() -> None:
    """By the judge that the ranks have; other faults of the configuration stand beside it."""
    words = ("model=tiny_gpt2", "prompts=Hi", "model.dtype=float16")
    of_type, of_slices, of_stages = faults(*words, "parallel.model_parallel=5", "parallel.pipeline_stage=9")
    assert of_type.startswith("model.dtype=float16: ")
    assert of_slices.startswith("parallel.model_parallel=5: does not divide the 4 heads of ")
    assert ", the 384 outputs of " in of_slices
    assert of_slices.endswith("; allowed for this model: 1, 2, 4")
    assert of_stages == "parallel.pipeline_stage=9: the model has 3 layers; allowed: 1 to 3"


def test_an_assistant_is_divided_over_the_ranks_of_a_stage_too(tmp_path: Path) -> None:
    config = json.loads((Path(__file__).parents[3] / "examples/tiny_gpt2/config.json").read_bytes())
    (tmp_path / "config.json").write_text(json.dumps(config | {"n_head": 3}))
    words = ("model=tiny_gpt2", "prompts=Hi", f"model.assistant={tmp_path}", "parallel.model_parallel=2")
    [fault] = faults(*words, "decoding.num_assistant_tokens=3", "parallel.pipeline_stage=3")
    assert fault.startswith(f"model.assistant={tmp_path}: parallel.model_parallel=2: does not divide the 3 h")
    assert fault.endswith("; allowed for this model: 1, 3")


@pytest.mark.parametrize("content", ["", "[]", "{", '{"n_head": "x"}', "[" * 100_000, "\udcff"])
def test_a_damaged_config_json_is_left_to_the_checkpoint_reader(
    content: str, usable: tuple[str, str], model_folder: Path
) -> None:
    (model_folder / "config.json").write_bytes(content.encode("utf-8", "surrogateescape"))
    config_of("generate", *usable, "parallel.model_parallel=3")


def test_missing_paths_suggest_what_is_beside_them(tmp_path: Path, model_folder: Path) -> None:
    (tmp_path / "questions.txt").write_text("One\n")
    found = faults(
        f"model.checkpoint_name_or_path={model_folder}s",
        f"model.tokenizer={tmp_path}/questions.txt",
        f"prompts_file={tmp_path}/question.txt",
        f"output.file={tmp_path}/no/such.txt",
    )
    assert [line.partition(": ")[2] for line in found] == [
        f"no such folder; did you mean {model_folder}?",
        f"is a file; give the folder that holds it: {tmp_path}",
        f"no such file; did you mean {tmp_path}/questions.txt?",
        f"the folder {tmp_path}/no does not exist",
    ]


def test_a_folder_without_config_json_is_no_model(tmp_path: Path) -> None:
    (line,) = faults(f"model.checkpoint_name_or_path={tmp_path}", "prompts=Hi")
    assert line.endswith("the folder holds no config.json")


def test_strange_paths_are_refused_not_crashed_on() -> None:
    for path in ("x" * 5000, "'a\0b'", "shipped:../../etc", "'~nobody-has-this-name/x'"):
        (line,) = faults(f"model.checkpoint_name_or_path={path}", "prompts=Hi")
        assert line.startswith("model.checkpoint_name_or_path=")
    (line,) = faults(f"model={'x' * 5000}", "prompts=Hi")
    assert "no such option" in line


def test_an_unknown_option_lists_those_that_exist(model_folder: Path) -> None:
    assert faults("model=tiny_gpt", "prompts=Hi") == (
        "model=tiny_gpt: no such option; there are auto, tiny_gpt2; did you mean tiny_gpt2?",
    )
    assert faults(f"model={model_folder}", "prompts=Hi") == (
        f"model={model_folder}: a folder is given as model.checkpoint_name_or_path={model_folder}",
    )
    assert faults("model=gpt2", "prompts=Hi") == (
        "model=gpt2: no such option; there are auto, tiny_gpt2; a folder is given as "
        "model.checkpoint_name_or_path=gpt2",
    )


@pytest.mark.parametrize("name", ["model.path", "model_path", "model_name_or_path", "model.name"])
def test_other_names_of_the_model(name: str) -> None:
    assert f"{name}: unknown key; did you mean model.checkpoint_name_or_path?" in faults(
        f"{name}=x", "prompts=Hi"
    )


@pytest.mark.parametrize(
    ("given", "named"),
    [
        (["decoding.do_sample=true", "decoding.num_return_sequences=9"], "decoding.num_return_sequences=9"),
        (["decoding.num_beams=9"], "decoding.num_beams=9"),
        (["decoding.do_sample=true", "decoding.best_of=9"], "decoding.best_of=9"),
        (["decoding.penalty_alpha=0.6", "decoding.top_k=9"], "decoding.top_k=9"),
    ],
)
def test_more_sequences_than_a_step_holds(given: list[str], named: str, usable: tuple[str, str]) -> None:
    (line,) = faults(*usable, *given, "runtime.max_batched_tokens=8")
    assert line.startswith(f"{named}: a row then has 9 tokens in a step,")
    assert "runtime.max_batched_tokens=8" in line


def test_all_faults_are_reported_at_once(usable: tuple[str, str]) -> None:
    found = faults(
        *usable,
        "model=x",
        "decoding=y",
        "decoding.top_kk=1",
        "decoding.top_k=x",
        "model.type=z",
        "decoding.min_p=2",
    )
    starts = ["model=x: ", "decoding=y: ", "decoding.top_kk: ", "decoding.top_k=x: ", "model.type=z: "]
    assert [line[: len(start)] for line, start in zip(found, starts, strict=False)] == starts
    assert found[5:] == ("decoding.min_p=2.0: must be from 0 to 1",)


def test_a_refused_value_has_no_consequences(usable: tuple[str, str]) -> None:
    """top_p without sampling would be a fault too, but do_sample was meant to be something else."""
    assert faults(*usable, "decoding.do_sample=maybe", "decoding.top_p=0.9") == (
        "decoding.do_sample=maybe: must be true or false",
    )


def test_nothing_to_generate_and_nowhere_to_write_are_faults(usable: tuple[str, str]) -> None:
    (line,) = faults(usable[0])
    assert line.startswith("nothing to generate: give prompts=")
    (line,) = faults(usable[0], "interactive=true", "output.file=x")
    assert line.startswith("output.file=x: has no effect with interactive=true")


def a_link(path: Path) -> None:
    path.with_name("victim").touch()
    path.symlink_to(path.with_name("victim"))


@pytest.mark.parametrize("make", [os.mkfifo, a_link], ids=["pipe", "link"])
def test_an_output_file_that_is_none_is_refused_by_name(
    make: Callable[[Path], None], usable: tuple[str, str], tmp_path: Path
) -> None:
    make(tmp_path / "out")
    (line,) = faults(*usable, f"output.file={tmp_path}/out", "output.overwrite=true")
    assert line.endswith("; leave the key out, and lead standard output there")
    assert "/out: is not replaced (" in line
    for device in ("/dev/null", "/dev/stdout"):
        (line,) = faults(*usable, f"output.file={device}")
        assert line.startswith(f"output.file={device}: is not replaced (")


def test_a_shortest_output_without_positions_for_it_is_refused(usable: tuple[str, str]) -> None:
    limit = "prompt and output together may have 64 tokens; allowed: 0 to 64"
    assert faults(*usable, "decoding.min_length=65", "model.seq_length=64") == (
        f"decoding.min_length=65: {limit}",
    )
    (line,) = faults(*usable, "decoding.min_length=1000000")
    assert line.startswith("decoding.min_length=1000000: prompt and output together may have ")


@pytest.mark.parametrize("word", ["output.file=/proc/x", "output.dir=/proc/x/y"])
def test_a_folder_that_takes_no_files_is_refused(word: str, usable: tuple[str, str]) -> None:
    task = "generate" if "file" in word else "compare"
    with pytest.raises(ConfigError, match=f"^{word}: no file can be made in the folder /proc "):
        config_of(task, *usable, word)


def test_what_tries_an_output_out_leaves_nothing(usable: tuple[str, str], tmp_path: Path) -> None:
    before = [*tmp_path.iterdir()]
    config_of("generate", *usable, f"output.file={tmp_path}/out")
    config_of("compare", *usable, f"output.dir={tmp_path}/new")
    assert [*tmp_path.iterdir()] == before


def test_an_output_file_that_is_there_is_only_written_over_if_asked(
    usable: tuple[str, str], tmp_path: Path
) -> None:
    out = f"output.file={tmp_path}/out"
    config_of("generate", *usable, out)
    for name, shown in (("out.config.yaml", f"{tmp_path}/out.config.yaml "), ("out", "")):
        (tmp_path / name).touch()
        (line,) = faults(*usable, out)
        assert line == f"{out}: {shown}already exists; use another name, or output.overwrite=true"
    config_of("generate", *usable, out, "output.overwrite=true")


def test_comparisons_are_only_written_over_if_asked(usable: tuple[str, str], tmp_path: Path) -> None:
    (tmp_path / "comparison.html").touch()
    words = [*usable, f"output.dir={tmp_path}"]
    with pytest.raises(ConfigError, match=r"comparison\.html already exists; .*output\.overwrite=true"):
        config_of("compare", *words)
    config_of("compare", *words, "output.overwrite=true")


@pytest.mark.parametrize("key", ["prompts_file", "data.template_file", "data.filter_keys"])
def test_a_pipe_to_read_is_refused_and_not_waited_for(key: str, model_folder: Path, tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "pipe")
    task = "generate" if key == "prompts_file" else "plan"
    words = [f"model.checkpoint_name_or_path={model_folder}", f"{key}={tmp_path}/pipe"]
    words += [] if task == "generate" else ["data.path=-"]
    with pytest.raises(ConfigError, match=f"{key}=.*/pipe: is no regular file; give a file with "):
        config_of(task, *words)
