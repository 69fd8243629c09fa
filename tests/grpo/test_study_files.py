"""The study files that are shipped load, and their arms differ only where they say."""

import pathlib

import pytest

from grpo_jax import study_config

CONFIGS = pathlib.Path(__file__).parents[2] / "configs"
FILES = [CONFIGS / "quickstart_compare.toml", *sorted(CONFIGS.glob("study_b/*.toml"))]
SAYS = {
    "grpo": {},
    "dense": {"method.name": "dense"},
    "filter": {"selection.name": "filter"},
    "random": {"selection.name": "random"},
    "filter-hard": {"selection.name": "filter", "selection.target": 0.25},
    "dense+filter": {"method.name": "dense", "selection.name": "filter"},
    "dynamic": {"selection.name": "dynamic"},
    "history": {"selection.name": "history"},
}


@pytest.mark.parametrize("file", FILES, ids=lambda file: file.stem)
def test_arms_differ_only_where_they_say(file):
    study = study_config.load(file)
    for arm in study.arms:
        assert study.differences(arm) == SAYS[arm]
    if file.parent.name == "study_b":
        assert list(study.arms) == list(SAYS)
        assert len(study.seeds) >= 3


def test_there_are_six_models_for_two_kinds_of_devices():
    models = {}
    for file in CONFIGS.glob("study_b/*.toml"):
        study = study_config.load(file)
        models.setdefault(study.base.model.path, []).append(study.base.mesh.fsdp)
    assert len(models) == 6
    assert all(sorted(meshes) == [1, 8] for meshes in models.values())


def test_the_files_of_a_model_differ_in_their_mesh_alone():
    from grpo_jax import config

    for file in CONFIGS.glob("study_b/*-80gb.toml"):
        one = study_config.load(file).base
        other = study_config.load(str(file).replace("-80gb", "-v5e8")).base
        assert config.differences(one, other) == ["mesh.fsdp"]
