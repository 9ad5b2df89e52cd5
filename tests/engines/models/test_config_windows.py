"""Sliding windows by layer, as config.json states them."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from engines.models.config import UnsupportedModel
from tests.engines.models.conftest import MISTRAL, MIXTRAL, write_and_read
from tests.support.published_models import PUBLISHED

QWEN3_06B = PUBLISHED["qwen3-0.6b"]


@pytest.mark.parametrize(("data", "default"), [(MISTRAL, 4096), (MIXTRAL, None)])
def test_mistral_and_mixtral_have_the_sliding_window_in_all_layers(
    data: dict[str, Any], default: int | None, tmp_path: Path
) -> None:
    for fields, window in (({}, default), ({"sliding_window": None}, None), ({"sliding_window": 300}, 300)):
        config = write_and_read(tmp_path, data | fields)
        assert {spec.window for spec in config.attention} == {window}
        assert config.window == window
        assert config.max_position_embeddings == 8192
    with pytest.raises(UnsupportedModel, match="sliding_window is 0"):
        write_and_read(tmp_path, data | {"sliding_window": 0})


@pytest.mark.parametrize(
    ("architecture", "model_type"),
    [
        ("MistralForCausalLM", "mistral"),
        ("MistralForCausalLM", "ministral"),
        ("MinistralForCausalLM", "ministral"),
    ],
)
def test_mistral_and_ministral_have_the_sliding_window_in_the_layers_that_are_named(
    architecture: str, model_type: str, tmp_path: Path
) -> None:
    data = MISTRAL | {"architectures": [architecture], "model_type": model_type, "num_hidden_layers": 2}
    types = {"layer_types": ["full_attention", "sliding_attention"]}
    for fields, windows in (
        ({}, [4096, 4096]),
        (types, [None, 4096]),
        (types | {"sliding_window": 300}, [None, 300]),
        (types | {"sliding_window": None}, [None, None]),
    ):
        config = write_and_read(tmp_path, data | fields)
        assert [spec.window for spec in config.attention] == windows


def test_mixtral_ignores_layer_types(tmp_path: Path) -> None:
    data = MIXTRAL | {"num_hidden_layers": 2, "sliding_window": 300, "layer_types": ["full_attention"] * 2}
    assert write_and_read(tmp_path, data).window == 300


QWEN2 = QWEN3_06B | {"architectures": ["Qwen2ForCausalLM"], "model_type": "qwen2"}


@pytest.mark.parametrize("data", [QWEN3_06B, QWEN2])
def test_qwen_has_the_sliding_window_in_some_layers(data: dict[str, Any], tmp_path: Path) -> None:
    def windows(**fields: Any) -> list[int | None]:
        return [spec.window for spec in write_and_read(tmp_path, data | fields).attention]

    on = {"use_sliding_window": True, "sliding_window": 300, "num_hidden_layers": 4}
    assert windows(**on | {"use_sliding_window": False}) == [None] * 4
    assert windows(**on) == [None] * 4
    assert windows(**on | {"max_window_layers": 3}) == [None, None, None, 300]
    assert windows(**on | {"max_window_layers": 0}) == [300] * 4
    assert windows(**on | {"max_window_layers": 0, "sliding_window": None}) == [None] * 4
    assert write_and_read(tmp_path, data | on).max_position_embeddings == 40960
    types = ["sliding_attention", "full_attention"] * 2
    assert windows(**on | {"layer_types": types}) == [300, None] * 2
    assert write_and_read(tmp_path, data | on | {"layer_types": types}).window is None
    assert write_and_read(tmp_path, data | on | {"max_window_layers": 0}).window == 300
    for wrong in (types[:3], "sliding_attention", ["sliding"] * 4, [[]] * 4):
        with pytest.raises(UnsupportedModel, match="layer_types is"):
            windows(**on | {"layer_types": wrong})


@pytest.mark.parametrize("changes", [{}, {"max_window_layers": 1}, {"layer_types": ["full_attention"] * 2}])
def test_qwen3_moe_has_the_sliding_window_in_all_layers(changes: dict[str, Any], tmp_path: Path) -> None:
    data = QWEN3_06B | {
        "architectures": ["Qwen3MoeForCausalLM"],
        "model_type": "qwen3_moe",
        "num_hidden_layers": 2,
        "sliding_window": 300,
    }
    for enabled, window in ((True, 300), (False, None)):
        config = write_and_read(tmp_path, data | changes | {"use_sliding_window": enabled})
        assert [spec.window for spec in config.attention] == [window] * 2
        assert all(spec.query_key_norms for spec in config.attention)
