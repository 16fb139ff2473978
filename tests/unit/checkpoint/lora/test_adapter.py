"""Reading LoRA adapters: what is taken, and every refusal of an adapter that would not do what it says."""

import math

import numpy as np
import pytest
from adapter_folders import (
    CONFIG,
    INPUTS,
    MODULES,
    OUTPUTS,
    RANK,
    SHAPES,
    matrices,
    write_adapter,
    write_mindformers_adapter,
)

from mindbatch.checkpoint.lora.adapter import open_adapter
from mindbatch.checkpoint.lora.modules import ModuleKind
from mindbatch.checkpoint.lora.plan import BaseTensors, adapted_weights, plan_lora
from mindbatch.io.errors import CheckpointError, ConfigError

Q0 = "base_model.model.model.layers.0.self_attn.q_proj"


def fit(folder, shapes=SHAPES):
    adapter = open_adapter(folder)
    return adapted_weights(adapter, BaseTensors(shapes))


@pytest.mark.parametrize("task", ["CAUSAL_LM", "SEQ_2_SEQ_LM"])
def test_a_peft_folder(task, tmp_path):
    adapter = open_adapter(write_adapter(tmp_path, task_type=task))
    assert adapter.settings.scaling == 1.5
    assert tuple(adapter.modules) == MODULES
    assert set(adapted_weights(adapter, BaseTensors(SHAPES))) == {f"{module}.weight" for module in MODULES}
    module = adapter.modules[MODULES[0]]
    assert (module.kind, module.rank, module.inputs, module.outputs) == (
        ModuleKind.LINEAR,
        RANK,
        INPUTS,
        OUTPUTS,
    )
    low_rank = module.low_rank()
    np.testing.assert_array_equal(low_rank.a, matrices()[f"{Q0}.lora_A.weight"])
    np.testing.assert_array_equal(low_rank.b, matrices()[f"{Q0}.lora_B.weight"])
    assert (low_rank.scaling, low_rank.bias, low_rank.magnitude) == (1.5, None, None)


def test_the_digest_is_of_what_acts(tmp_path):
    """Bytes and scaling, neither the place nor settings of the training."""

    def digest(name, tensors=None, **changes):
        return open_adapter(write_adapter(tmp_path / name, tensors, **changes)).digest

    one = digest("one")
    assert one == digest("moved", lora_dropout=0.5)
    others = {digest("scaled", lora_alpha=4), digest("other", changed(B=ONES)), digest("r", use_rslora=True)}
    assert len(others | {one}) == 4


@pytest.mark.parametrize("letters", ["ab", "AB"])
@pytest.mark.parametrize("prefix", ["mindpet_delta", "tk_delta"])
def test_a_mindformers_folder(tmp_path, letters, prefix):
    tensors = matrices("{module}." + prefix + "_lora_{which}", letters)
    config = {"r": RANK, "lora_alpha": 4, "target_modules": ".*q_proj|.*v_proj"}
    write_mindformers_adapter(tmp_path, tensors, config)
    assert len(fit(tmp_path)) == len(MODULES)
    assert open_adapter(tmp_path).settings.scaling == 2.0


@pytest.mark.parametrize(
    ("changes", "scaling"),
    [
        ({}, 1.5),
        ({"use_rslora": True}, 3 / math.sqrt(2)),
        ({"r": None, "lora_rank": RANK, "lora_alpha": 1}, 0.5),  # MindFormers' name
    ],
)
def test_the_scaling(changes, scaling, tmp_path):
    config = {key: value for key, value in {**CONFIG, **changes}.items() if value is not None}
    assert open_adapter(write_adapter(tmp_path, config=config)).settings.scaling == scaling


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"use_dora": 1}, "use_dora=1: must be true or false"),
        ({"use_dora": True}, "use_dora is true, and it has no lora_magnitude_vector"),
        ({"use_dora": True, "lora_bias": True}, "use_dora=True and lora_bias=True: not supported together"),
        ({"bias": "lora_only"}, "bias='lora_only': must be 'none'"),
        ({"lora_bias": True}, "lora_bias is true, and it has no lora_B.bias"),
        ({"rank_pattern": {"q_proj": 4}}, r"shape \[2, 4\] must be \[r, inputs\] with r=4"),
        ({"rank_pattern": {"q_proj": 0}}, "rank_pattern: 'q_proj' has 0; must be a whole number"),
        ({"rank_pattern": {"(": 2}}, r"rank_pattern: '\(' is no regular expression"),
        ({"rank_pattern": ["q_proj"]}, "rank_pattern=.*must be an object"),
        ({"alpha_pattern": {"q_proj": "4"}}, "alpha_pattern: 'q_proj' has '4'; must be a number above 0"),
        ({"alpha_pattern": {"q{e}": 4}}, "alpha_pattern: .* has .{"),
        ({"target_modules": "(q"}, r"target_modules='\(q': is no regular expression"),
        ({"target_modules": "[[:alpha:]]"}, r"target_modules=.*: has .\[:"),
        ({"target_modules": ".*q_proj"}, r"v_proj' is none of target_modules, '\.\*q_proj'"),
        ({"exclude_modules": ["v_proj"]}, "v_proj' is none of target_modules"),
        ({"exclude_modules": r".*\.1\..*"}, "layers.1.self_attn.q_proj' is none of target_modules"),
        ({"layers_to_transform": [0]}, r"1.self_attn.q_proj' is none of .* in layers_to_transform, \[0\]"),
        ({"layers_to_transform": -1}, "layers_to_transform=-1: must be numbers"),
        ({"layers_to_transform": 0, "target_modules": "q"}, "layers_to_transform=0: not with a pattern"),
        ({"layers_pattern": "layers"}, "layers_pattern='layers': has no effect"),
        ({"layers_pattern": ".*", "layers_to_transform": 0}, r"layers_pattern='\.\*': must be names"),
        ({"modules_to_save": ["lm_head"]}, "modules_to_save has 'lm_head', of which there is no weight"),
        ({"modules_to_save": "lm_head"}, "modules_to_save='lm_head': must be names"),
        ({"modules_to_save": ["norm"]}, r"modules_to_save=\[norm\]: whole modules other than"),
        ({"alora_invocation_tokens": [1]}, "alora_invocation_tokens=.*aLoRA.*not supported"),
        ({"arrow_config": {"top_k": 1}}, "arrow_config=.*not supported"),
        ({"use_bdlora": {"nblocks": 2}}, "use_bdlora=.*not supported"),
        ({"kasa_config": {"beta": 1}}, "kasa_config=.*not supported"),
        ({"monteclora_config": {"num_samples": 1}}, "monteclora_config=.*not supported"),
        ({"use_qalora": True}, "use_qalora=.*not supported"),
        ({"trainable_token_indices": [1]}, "trainable_token_indices=.*not supported"),
        ({"target_parameters": ["w"]}, "target_parameters=.*not supported"),
        ({"base_model_name_or_path": 3}, "base_model_name_or_path=3: must be a name"),
        ({"modules_to_save": ["score"]}, r"modules_to_save=\[score\].*classification head"),
        ({"task_type": "SEQ_CLS"}, "task_type='SEQ_CLS', which has a classification head"),
        ({"peft_type": "IA3"}, "peft_type='IA3': must be 'LORA'"),
        ({"layer_replication": [[0, 4]]}, "layer_replication="),
        ({"r": 0}, "r=0: must be a whole number"),
        ({"r": True}, "r=true: must be a whole number"),
        ({"r": "8"}, "r='8': must be a whole number"),
        ({"lora_rank": 3}, "r=2 and lora_rank=3: must be the same"),
        ({"lora_alpha": 0}, "lora_alpha=0: must be a number above 0"),
        ({"lora_alpha": None}, "lora_alpha=null"),
        ({"use_rslora": "yes"}, "use_rslora='yes': must be true or false"),
        ({"target_modules": [1]}, r"target_modules=\[1\]"),
        ({"target_modules": {"a": 1}}, "target_modules="),
        ({"use_rs_lora": True}, "use_rs_lora=true: not understood.*did you mean 'use_rslora'"),
    ],
)
def test_settings_that_are_refused(tmp_path, changes, message):
    with pytest.raises(CheckpointError, match=message):
        open_adapter(write_adapter(tmp_path, **changes))


def test_all_faults_of_settings_and_tensors_are_told_at_once(tmp_path):
    tensors = matrices() | {"base_model.model.score.weight": np.ones((2, 4), np.float32)}
    with pytest.raises(CheckpointError) as caught:
        open_adapter(write_adapter(tmp_path, tensors, use_qalora=True, bias="all"))
    text = str(caught.value)
    assert all(part in text for part in ("use_qalora", "bias='all'", "score.weight': a classification head"))


def changed(**tensors):
    """The matrices with some replaced, and with those that are None left out."""
    found = matrices()
    for name, array in tensors.items():
        key = f"{Q0}.lora_{name}.weight"
        if array is None:
            del found[key]
        else:
            found[key] = array
    return found


ONES = np.ones((OUTPUTS, RANK), np.float32)


@pytest.mark.parametrize(
    ("tensors", "message"),
    [
        (changed(B=None), r"lora_A.weight': its other half is missing"),
        (changed(A=np.ones((3, 4), np.float32)), r"shape \[3, 4\] must be \[r, inputs\] with r=2"),
        (changed(B=np.ones((6, 3), np.float32)), r"shape \[6, 3\] must be \[outputs, r\] with r=2"),
        (changed(B=ONES[0]), r"shape \[2\] must be \[outputs, r\]"),
        (changed(B=ONES.astype(np.int64)), "dtype I64 must be one of F32, F16, BF16"),
        (changed(B=ONES * np.nan), "infinite or no numbers"),
        (
            matrices() | {f"{Q0}.lora_magnitude_vector": ONES[0]},
            "magnitude_vector.*would not be used, for use_dora is not true",
        ),
        (matrices() | {"base_model.model.lm_head.lora_embedding_A": ONES}, "its other half is missing"),
        (matrices() | {f"{Q0}.lora_B.bias": ONES[:, 0]}, "would not be used, for lora_bias is not true"),
        (matrices() | {f"{Q0}.modules_to_save.weight": ONES}, "lm_head and embed_tokens alone"),
        (
            matrices() | {"base_model.model.model.embed_tokens.base_layer.weight": ONES},
            "has no lora_A and lora_B",
        ),
        (matrices() | {"base_model.model.lm_head.weight": ONES[0]}, r"must be \[outputs, inputs\]"),
        (
            matrices() | {"base_model.model.model.norm.weight": ONES[0]},
            "norm.weight': a weight of the model itself",
        ),
        (matrices() | {f"{Q0}.mindpet_delta_lora_a": np.ones((2, 4), np.float32)}, "has this matrix twice"),
        ({}, "no pair of lora_A and lora_B"),
        (
            {name: array * (".lora_A" in name) for name, array in matrices().items()},
            "every module is zero: the adapter would have no effect",
        ),
    ],
    ids=str,
)
def test_tensors_that_are_refused(tmp_path, tensors, message):
    with pytest.raises(CheckpointError, match=message):
        open_adapter(write_adapter(tmp_path, tensors))


def test_one_module_without_effect_among_others_is_allowed(tmp_path):
    assert fit(write_adapter(tmp_path, changed(B=ONES * 0)))


def test_targets_and_modules_must_be_the_same(tmp_path):
    with pytest.raises(CheckpointError, match="'k_proj', of which there are no matrices"):
        open_adapter(write_adapter(tmp_path, target_modules=["q_proj", "v_proj", "k_proj"]))
    with pytest.raises(CheckpointError, match=r"v_proj' is none of target_modules, \[q_proj\]"):
        open_adapter(write_adapter(tmp_path, target_modules=["q_proj"]))
    assert fit(write_adapter(tmp_path, target_modules=r".*self_attn\.(q|v)_proj"))
    assert fit(write_adapter(tmp_path, target_modules="all-linear"))


def test_modules_that_the_model_has_not_got(tmp_path):
    folder = write_adapter(tmp_path)
    with pytest.raises(CheckpointError, match=r"has no 'model.layers.0.self_attn.q_proj.weight'"):
        fit(folder, {"model.layers.0.self_attn.q_proj_weight": (OUTPUTS, 4)})


def test_shapes_that_do_not_fit_the_model(tmp_path):
    folder, name = write_adapter(tmp_path), f"{MODULES[0]}.weight"
    with pytest.raises(CheckpointError, match=r"for a weight of \[6, 4\]; .* has \[6, 5\]$"):
        fit(folder, SHAPES | {name: (6, 5)})
    with pytest.raises(CheckpointError, match=r"has \[4, 6\]; is fan_in_fan_out right\?"):
        fit(folder, SHAPES | {name: (4, 6)})


def test_a_layer_without_matrices_is_named(tmp_path):
    tensors = {name: array for name, array in matrices().items() if "layers.1.self_attn.q" not in name}
    for targets in (["q_proj", "v_proj"], r".*\.(q|v)_proj"):
        with pytest.raises(
            CheckpointError, match=r"layers.1.self_attn.q_proj.weight' is meant by target_modules"
        ):
            fit(write_adapter(tmp_path / "a", tensors, target_modules=targets))
    adapter = open_adapter(write_adapter(tmp_path / "a", tensors))
    theirs = {name.replace("self_attn.q_proj", "attention.wq"): name for name in SHAPES}
    with pytest.raises(CheckpointError, match="layers.1.self_attn.q_proj.weight' is meant by"):
        adapted_weights(adapter, BaseTensors(SHAPES, theirs))
    first = {name: array for name, array in tensors.items() if "layers.1." not in name}
    assert fit(write_adapter(tmp_path / "b", first, layers_to_transform=[0], layers_pattern="layers"))
    with pytest.raises(CheckpointError, match=r"k_proj.weight' is meant by target_modules"):
        fit(write_adapter(tmp_path / "c", target_modules=".*_proj"))


def test_renames_lead_to_the_names_of_the_model(tmp_path):
    tensors = matrices("{module}.mindpet_delta_lora_{which}", "ab")
    tensors = {name.replace("self_attn.q_proj", "attention.wq"): array for name, array in tensors.items()}
    config = CONFIG | {"target_modules": ["wq", "v_proj"]}
    adapter = open_adapter(write_mindformers_adapter(tmp_path, tensors, config))
    renames = {
        f"model.layers.{n}.attention.wq.weight": f"model.layers.{n}.self_attn.q_proj.weight" for n in "01"
    }
    assert set(adapted_weights(adapter, BaseTensors(SHAPES, renames))) == {
        f"{module}.weight" for module in MODULES
    }


def test_folders_that_are_no_adapter(tmp_path):
    with pytest.raises(ConfigError, match="no such folder"):
        open_adapter(tmp_path / "nothing")
    with pytest.raises(
        CheckpointError,
        match=r"adapter_config\.json: missing; without it the scaling .*\n.*no adapter; must have one of",
    ):
        open_adapter(tmp_path)
    (tmp_path / "adapter_model.bin").write_bytes(b"PK")
    with pytest.raises(CheckpointError, match="adapter_model.bin: not a file of torch.save"):
        open_adapter(tmp_path)


def test_a_file_of_any_name(tmp_path):
    """As MindFormers' training leaves it, with the optimizer's tensors beside the matrices."""
    tensors = matrices("{module}.mindpet_delta_lora_{which}", "ab")
    ours = open_adapter(write_mindformers_adapter(tmp_path / "whole", tensors, CONFIG))
    training = {f"adam_m.{name}": array for name, array in tensors.items()}
    training |= {"global_step": np.zeros(1, np.float32), "epoch_num": np.ones(1, np.float32)}
    home = write_mindformers_adapter(tmp_path / "file", tensors | training, CONFIG)
    file = (home / "adapter_model.ckpt").rename(home / "llama_rank_0-3_1.ckpt")
    beside = open_adapter(file)
    assert beside.warnings == (f"{file}: 10 tensors of the training (optimizer, counters) are left out",)
    assert beside.digest == ours.digest
    (home / "adapter_config.json").unlink()
    given = open_adapter(file, scaling=1.5)
    assert given.digest == ours.digest
    with pytest.raises(CheckpointError, match=r"adapter_config\.json: missing; without it the scaling"):
        open_adapter(file)
    with pytest.raises(
        CheckpointError, match=rf"no adapter, only {file.name}; must have one of .*, or give the file"
    ):
        open_adapter(home, scaling=1.5)


def test_the_model_says_which_weights_are_stored_inputs_first(tmp_path):
    """PEFT saves the setting that was right for the last module; square weights do not tell."""
    square = dict.fromkeys(SHAPES, (4, 4))
    tensors = {name: array[:4] if ".lora_B" in name else array for name, array in matrices().items()}
    for said in (True, False):
        adapter = open_adapter(write_adapter(tmp_path / str(said), tensors, fan_in_fan_out=said))
        for stored in (set(square), set(), {f"{MODULES[0]}.weight"}):
            plan = plan_lora(adapter, BaseTensors(square, transposed=stored))
            assert plan.inputs_first == stored.intersection(plan.modules)
        assert bool(plan_lora(adapter, BaseTensors(square)).inputs_first) == said


def test_an_adapter_that_changes_after_it_was_opened_is_refused(tmp_path):
    adapter = open_adapter(write_adapter(tmp_path))
    write_adapter(tmp_path, changed(B=ONES))
    assert adapter.modules[MODULES[1]].low_rank()
    with pytest.raises(CheckpointError, match=r"q_proj.lora_B.weight' has changed meanwhile"):
        adapter.modules[MODULES[0]].low_rank()


def test_what_an_adapter_may_not_be_for_is_a_warning(tmp_path):
    def warnings(base, recorded=None, start=True):
        changes = {"base_model_name_or_path": recorded, "init_lora_weights": start}
        return open_adapter(write_adapter(tmp_path, **changes), base=base).warnings

    cached = "/hub/models--org--Some-7B/snapshots/0123"
    for same in ("org/Some-7B", "/models/some-7b/", "Some-7B", None, ""):
        assert warnings(cached, same) == ()
    assert warnings(None, "other") == ()
    assert "'org/Other': trained on another model than" in warnings(cached, "org/Other")[0]
    for start in ("pissa", "pissa_niter_4", "olora", "corda", "loftq", "lora_ga"):
        assert "began by changing the base weights" in warnings(None, start=start)[0]
    assert warnings(None, start="gaussian") == warnings(None, start="eva") == ()


def test_an_adapter_in_the_hub_s_cache(tmp_path):
    """Its files are links to others whose names have no ending."""
    plain, snapshot = write_adapter(tmp_path / "plain"), tmp_path / "snapshots" / "0123"
    snapshot.mkdir(parents=True)
    (tmp_path / "blobs").mkdir()
    for number, file in enumerate(sorted(plain.iterdir())):
        file.rename(tmp_path / "blobs" / str(number))
        (snapshot / file.name).symlink_to(f"../../blobs/{number}")
    assert len(fit(snapshot)) == len(MODULES)
