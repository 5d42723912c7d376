"""Recipes: read, overridden, validated; every mistake says where it is and what is nearest."""

import pytest
import yaml

from sage_grpo.config import ConfigError, RecipeConfig, dump_recipe, load_recipe
from sage_grpo.config.load import shipped_recipes


@pytest.mark.parametrize("name", list(shipped_recipes()))
def test_every_shipped_recipe_is_valid_and_survives_a_round_trip(name):
    config = load_recipe(name)
    assert load_recipe(yaml.safe_load(dump_recipe(config))) == config


def test_a_recipe_extends_another(tmp_path):
    """A shipped one or a file beside it: sections are filled up, values and lists replaced; a run keeps the whole."""
    (tmp_path / "mine.yaml").write_text(
        "extends: lab-paper\nsampling: {window: {size: 1}}\nrewards: [{type: motion}]\n"
    )
    (tmp_path / "yours.yaml").write_text("extends: mine.yaml\nsampling: {window: {range: [0, 0.5]}, steps: 12}\n")
    mine, yours, base = (
        load_recipe(source) for source in (tmp_path / "mine.yaml", tmp_path / "yours.yaml", "lab-paper")
    )
    assert mine.policy == base.policy
    assert (mine.sampling.window.size, mine.sampling.shift) == (1, base.sampling.shift)
    assert [reward.type for reward in mine.rewards] == ["motion"]
    assert (yours.sampling.window.size, yours.sampling.window.range, yours.sampling.steps) == (1, (0, 0.5), 12)
    assert "extends" not in dump_recipe(yours)
    assert load_recipe({"extends": str(tmp_path / "yours.yaml")}) == yours
    assert load_recipe(tmp_path / "yours.yaml", ["sampling.steps=9"]).sampling.steps == 9


def test_recipes_that_extend_each_other(tmp_path):
    (tmp_path / "a.yaml").write_text("extends: b.yaml\n")
    (tmp_path / "b.yaml").write_text("extends: a.yaml\n")
    with pytest.raises(ConfigError, match=r"goes round in circles"):
        load_recipe(tmp_path / "a.yaml")
    (tmp_path / "c.yaml").write_text("extends: lab-papr\n")
    with pytest.raises(ConfigError, match=r"no recipe lab-papr; did you mean lab-paper"):
        load_recipe(tmp_path / "c.yaml")


@pytest.mark.parametrize(
    "name", [name for name in shipped_recipes() if name.endswith("gpu-fast") or "lora-fast" in name]
)
def test_fast_recipes_keep_what_they_extend(name):
    """They differ in what saves passes, and in how often somebody looks."""
    fast, base = load_recipe(name).model_dump(), load_recipe(name.removesuffix("-fast")).model_dump()
    changed = {f"{s}.{k}" for s, v in fast.items() if isinstance(v, dict) for k in v if v[k] != base[s][k]}
    saving = {
        "sampling.steps",
        "sampling.order",
        "sampling.window",
        "sampling.tail",
        "policy.timestep_fraction",
        "kl.share",
    }
    assert changed <= saving | {"gauge.every", "run.out", "run.sample_every"}


def test_overrides_reach_every_level(tmp_path):
    path = tmp_path / "r.yaml"
    path.write_text("policy: {clip: 1e-3}\nrun: {iterations: 5}\n")
    config = load_recipe(path, ["policy.clip=1e-5", "kl.anchor=fixed", "run.trackers=[wandb]", "seed=7"])
    assert (config.policy.clip, config.kl.anchor, config.run.trackers, config.seed) == (1e-5, "fixed", ("wandb",), 7)
    assert config.run.iterations == 5


@pytest.mark.parametrize(
    ("values", "overrides", "message"),
    [
        ({"policy": {"clop": 1}}, [], "policy.clop: unknown key; did you mean policy.clip?"),
        ({"policy": {"gradient_accumulation": 4}}, [], "use four times policy.prompts_per_iteration"),
        ({"gradient_accumulation_steps": 4}, [], "use four times policy.prompts_per_iteration"),
        ({"kernel": "sage"}, [], "kernel: unknown key; did you mean sampling.kernel?"),
        ({"samplng": {}}, [], "samplng: unknown key; did you mean sampling?"),
        (
            {"rewards": [{"type": "x", "weigths": {}}]},
            [],
            "rewards.0.weigths: unknown key; did you mean rewards.0.weights?",
        ),
        ({"rewards": [{}]}, [], "rewards.0.type: Field required"),
        ({}, ["policy.clip=-1"], "policy.clip: Input should be greater than 0 (got -1)"),
        ({}, ["policy.clip=soft"], "policy.clip: Input should be a valid number"),
        ({}, ["policy.clip"], "is not of the form key=value"),
        ({}, ["seed.x=1"], "seed"),
        ({"kl": {"feedback": "paper"}}, [], "kl: feedback='paper' needs a target above 0"),
        (
            {"kl": {"anchor": "mooving"}},
            [],
            "kl.anchor: Input should be 'none', 'fixed' or 'moving' (got 'mooving'); did you mean 'moving'?",
        ),
        ({"optimizer": {"type": "adam"}}, [], "did you mean 'adamw'?"),
        ({"policy": {"aggregation": "reward"}}, [], "did you mean 'rewards'?"),
    ],
)
def test_mistakes(values, overrides, message):
    with pytest.raises(ConfigError) as caught:
        load_recipe(values, overrides)
    assert message in str(caught.value)


def test_all_mistakes_are_told_at_once():
    with pytest.raises(ConfigError) as caught:
        load_recipe({"policy": {"clop": 1}, "sampling": {"steps": 0}})
    assert len(str(caught.value).splitlines()) == 2


def test_missing_and_broken_files(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "hunyuan.yaml").write_text("- a\n- list\n")
    with pytest.raises(ConfigError, match=r"no recipe hunyuam.yaml; did you mean hunyuan.yaml"):
        load_recipe("hunyuam.yaml")
    with pytest.raises(ConfigError, match="holds no settings"):
        load_recipe("hunyuan.yaml")
    (tmp_path / "broken.yaml").write_text("a: [1, 2\n")
    with pytest.raises(ConfigError, match="not valid YAML"):
        load_recipe("broken.yaml")
    with pytest.raises(ConfigError, match="did you mean lab"):
        load_recipe("labb")


def test_yaml_cannot_run_code(tmp_path):
    path = tmp_path / "evil.yaml"
    path.write_text("seed: !!python/object/apply:os.system ['touch pwned']\n")
    with pytest.raises(ConfigError, match="not valid YAML"):
        load_recipe(path)


def test_a_recipe_is_an_algorithm_config():
    assert RecipeConfig().policy.num_generations == 4
