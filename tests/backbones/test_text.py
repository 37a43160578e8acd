"""Language models in a folder, compared with transformers by hand."""

import json

import numpy as np
import pytest

from fedran.backbones.catalogue import load_backbone
from fedran.core.errors import Refused
from helpers.tiny_language_model import write_language_model

torch = pytest.importorskip("torch")
transformers = pytest.importorskip("transformers")
TEXTS = ["the rain is in the sun", "money", "the bill of the account is the money of the sun"]


@pytest.mark.parametrize("pooling", ["mean_tokens", "cls_token", "max_tokens"])
@pytest.mark.parametrize("normalize", [True, False])
def test_features_are_pooled_as_the_folder_says(pooling, normalize, tmp_path):
    model = write_language_model(tmp_path / "m", pooling, normalize)
    network = load_backbone(f"hf:{tmp_path / 'm'}", "cpu", takes="text")
    tokenizer = transformers.AutoTokenizer.from_pretrained(tmp_path / "m")
    for i, text in enumerate(TEXTS):
        tokens = tokenizer(text, truncation=True, max_length=6, return_tensors="pt")
        with torch.inference_mode():
            hidden = model(**tokens).last_hidden_state[0]
        expected = {
            "mean_tokens": hidden.mean(dim=0),
            "cls_token": hidden[0],
            "max_tokens": hidden.amax(dim=0),
        }[pooling].numpy()
        if normalize:
            expected = expected / np.linalg.norm(expected)
        # In a batch with longer texts, padding changes nothing.
        np.testing.assert_allclose(network(TEXTS)[i], expected, atol=1e-5)
    assert "at most 6 tokens" in network.source["preprocessing"]


def test_the_tokenizer_is_part_of_the_weights(tmp_path):
    write_language_model(tmp_path / "m")
    one = load_backbone(str(tmp_path / "m"), "cpu", takes="text")
    text = (tmp_path / "m" / "tokenizer.json").read_text()
    changed = text.replace('"rain"', '"_"').replace('"snow"', '"rain"').replace('"_"', '"snow"')
    (tmp_path / "m" / "tokenizer.json").write_text(changed)
    (tmp_path / "m" / "vocab.txt").unlink()
    other = load_backbone(str(tmp_path / "m"), "cpu", takes="text")
    assert one.source["weights"] != other.source["weights"]


def test_what_a_folder_must_hold_is_named(tmp_path):
    with pytest.raises(FileNotFoundError, match="no such folder; expected one with a language mo"):
        load_backbone(f"hf:{tmp_path / 'none'}", takes="text")
    write_language_model(tmp_path / "m")
    modules = json.loads((tmp_path / "m" / "modules.json").read_text())
    dense = [*modules, {"type": "sentence_transformers.models.Dense", "path": "3_Dense"}]
    for wrong, words in ((dense, "got Dense"), ({"a": 1}, "a list of modules")):
        (tmp_path / "m" / "modules.json").write_text(json.dumps(wrong))
        with pytest.raises(Refused, match=words):
            load_backbone(f"hf:{tmp_path / 'm'}", takes="text")
    (tmp_path / "m" / "modules.json").write_text(json.dumps(modules))
    (tmp_path / "m" / "1_Pooling" / "config.json").write_text("{}")
    with pytest.raises(Refused, match="pooling: expected one of mean_tokens, cls_token"):
        load_backbone(f"hf:{tmp_path / 'm'}", takes="text")
