"""A small language model with its tokenizer, in the layout of sentence-transformers."""

import json


def write_language_model(folder, pooling="mean_tokens", normalize=True):
    """Write a folder with a BERT of width 16; returns the model."""
    import torch
    from transformers import BertConfig, BertModel, BertTokenizerFast
    from transformers.utils import logging

    logging.disable_progress_bar()
    folder.mkdir(parents=True)
    words = ["the", "rain", "snow", "sun", "money", "bill", "account", "a", "is", "of", "in", "to"]
    vocabulary = ["[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]", *words]
    (folder / "vocab.txt").write_text("\n".join(vocabulary))
    BertTokenizerFast(str(folder / "vocab.txt")).save_pretrained(folder)
    torch.manual_seed(0)
    sizes = {"num_hidden_layers": 1, "num_attention_heads": 2, "intermediate_size": 32}
    config = BertConfig(vocab_size=len(vocabulary), hidden_size=16, **sizes)
    model = BertModel(config, add_pooling_layer=False).eval()
    model.save_pretrained(folder)
    kinds = {"Transformer": "", "Pooling": "1_Pooling", "Normalize": "2_Normalize"}
    modules = [
        {"type": f"sentence_transformers.models.{kind}", "path": path}
        for kind, path in kinds.items()
        if normalize or kind != "Normalize"
    ]
    (folder / "modules.json").write_text(json.dumps(modules))
    (folder / "1_Pooling").mkdir()
    settings = {f"pooling_mode_{name}": name == pooling for name in ("mean_tokens", "cls_token")}
    settings[f"pooling_mode_{pooling}"] = True
    (folder / "1_Pooling" / "config.json").write_text(json.dumps(settings))
    (folder / "sentence_bert_config.json").write_text(json.dumps({"max_seq_length": 6}))
    return model
