"""Models in use, from packages with their weights: every statistic agrees with eager attention."""

from __future__ import annotations

import math
import os
import subprocess
import sys
from pathlib import Path

import pytest
import torch

import regard
from packaged import MINILM, folder_of
from watched import EVERYTHING, agrees

pytest.importorskip("transformers", reason="transformers, whose models these tests watch, is not installed")

import transformers

pytest_plugins = ["local_model_fixtures"]

TEXT = (
    "Attention lets a model look at all of its input at once, and weigh what it finds. The cat sat on the mat, because "
    "it was warm; the dog, who had been there before, was not asked. Prices rose by 3.5 % in March, the third month in "
    "a row, and the minister said that nothing would be done before the end of the year. "
)


def test_minilm_in_a_padded_batch() -> None:
    folder = folder_of(MINILM) / "model"
    tokenizer = transformers.AutoTokenizer.from_pretrained(folder)
    batch = tokenizer(
        ["The cat sat on the mat, because it was warm.", TEXT, "Short."], padding=True, return_tensors="pt"
    )
    model, eager = (
        transformers.AutoModel.from_pretrained(folder, attn_implementation=name).eval() for name in ("sdpa", "eager")
    )
    with torch.no_grad():
        plain = model(**batch).last_hidden_state
        with regard.watch(model, EVERYTHING) as record:
            output = model(**batch).last_hidden_state
        expected = eager(**batch, output_attentions=True).attentions
    assert torch.equal(output, plain)
    assert [layer.name for layer in record.layers] == [f"encoder.layer.{i}.attention.self" for i in range(6)]
    for layer, weights in zip(record.layers, expected, strict=True):
        agrees(layer, weights, batch["attention_mask"].bool())
    assert torch.equal(record.inputs["input_ids"], batch["input_ids"])


@pytest.mark.slow
@pytest.mark.xdist_group("smollm2")
def test_smollm2_in_a_padded_batch_and_as_it_goes_on(smollm2: Path) -> None:
    model = transformers.AutoModelForCausalLM.from_pretrained(smollm2, attn_implementation="sdpa").eval()
    tokenizer = transformers.AutoTokenizer.from_pretrained(smollm2)
    texts = [TEXT * 4, TEXT]
    ids = [tokenizer(text).input_ids for text in texts]
    longest = max(map(len, ids))
    assert longest > 250
    mask = torch.tensor([[0] * (longest - len(row)) + [1] * len(row) for row in ids])
    tokens = torch.tensor([[0] * (longest - len(row)) + row for row in ids])
    with torch.no_grad():
        plain = model(tokens, attention_mask=mask).logits
        with regard.watch(model, EVERYTHING, memory=2**31) as record:
            output = model(tokens, attention_mask=mask).logits
        assert torch.equal(output, plain)
        with regard.watch(model, EVERYTHING, layers=[0, 17], memory=2**31) as went_on:
            answer = model.generate(tokens, attention_mask=mask, max_new_tokens=4, do_sample=False, pad_token_id=0)
        model.set_attn_implementation("eager")
        expected = model(tokens, attention_mask=mask, output_attentions=True).attentions
        assert len(record.layers) == len(expected) == 30
        for layer, weights in zip(record.layers, expected, strict=True):
            agrees(layer, weights, mask.bool())
        mask = torch.cat([mask, torch.ones(2, 3, dtype=torch.int64)], 1)
        expected = model(answer[:, :-1], attention_mask=mask, output_attentions=True).attentions
        for layer, weights in zip(went_on.layers, (expected[0], expected[17]), strict=True):
            agrees(layer, weights, mask.bool())


MEMORY = """
import sys, torch, regard
from regard.bench.measure import peak_megabytes
from transformers import AutoModelForCausalLM

model = AutoModelForCausalLM.from_pretrained(sys.argv[1], attn_implementation="sdpa").eval()
sum(parameter.sum() for parameter in model.parameters())  # what was mapped from the file is read now
tokens = torch.randint(20, 40000, (1, 4096), generator=torch.Generator().manual_seed(0))

def run():
    with torch.no_grad():
        model(tokens, logits_to_keep=1)

def watched():
    with regard.watch(model) as record:
        run()
    assert len(record.layers) == 30 and record.left_out == 0

print(peak_megabytes(watched) - peak_megabytes(run))
"""


@pytest.mark.slow
@pytest.mark.xdist_group("smollm2")
def test_smollm2_on_4096_tokens_in_little_more_memory_than_unwatched(smollm2: Path) -> None:
    # By itself glibc keeps what is freed in pieces of some megabytes, more or less of it from run to run
    settings = {**os.environ, "MALLOC_MMAP_THRESHOLD_": str(2**20)}
    ended = subprocess.run([sys.executable, "-c", MEMORY, smollm2], env=settings, capture_output=True, text=True)
    assert ended.returncode == 0, ended.stderr
    more = float(ended.stdout)  # the weights alone would be 18 GB
    if math.isnan(more):
        pytest.skip("this system does not tell how much memory a process takes at most")
    assert more < 300
