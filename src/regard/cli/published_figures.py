"""Published figures, each with a training run to compare, as `regard recipes` lists and runs them."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

__all__ = ["RECIPES", "PublishedFigure"]

Layout = Literal["as published", "label first", "parallel, lower case"]


@dataclass(frozen=True)
class PublishedFigure:
    """A figure that others published for a test set, and a training run to compare with it.

    - ``task``: seq2seq, tag or classify; ``about``: a description of the data.
    - ``metric``, ``figure``, ``source``: the published result; ``ours``: the result of this training run.
    - ``train``, ``dev``, ``test``: names of files, without .gz: one, or a source and a target file in parallel;
      empty if the part is held out from the training data, or comes with the package.
    - ``layout``: the format of their lines; ``arguments``: those of `regard train`, besides the files; ``evaluate``:
      those of `regard evaluate`, which scores ``test`` after training if there are any.
    """

    name: str
    task: Literal["seq2seq", "tag", "classify"]
    about: str
    metric: str
    figure: str
    source: str
    train: tuple[str, ...] = ()
    dev: tuple[str, ...] = ()
    test: tuple[str, ...] = ()
    layout: Layout = "as published"
    arguments: tuple[str, ...] = ()
    evaluate: tuple[str, ...] = ()
    ours: str | None = None


_MEDIUM = {  # name of the files: language, WER of the ensemble, of one Transformer and of ours, extra options
    "arm_e": ("Armenian", "7.0", "8.9", "7.8", ()),
    "bul": ("Bulgarian", "18.3", "20.1", "13.9", ("--dropout", "0.2")),
    "dut": ("Dutch", "14.7", "16.9", "15.4", ()),
    "fre": ("French", "8.5", "10.2", "7.9", ()),
    "geo": ("Georgian", "0.0", "0.1", "0.1", ()),
    "hbs_latn": ("Serbo-Croatian", "32.1", "47.7", "35.7", ("--dropout", "0.2")),
    "hun": ("Hungarian", "1.8", "1.9", "1.6", ()),
    "jpn_hira": ("Japanese", "5.2", "8.5", "6.6", ()),
    "kor": ("Korean", "16.3", "30.2", "17.7", ("--dropout", "0.2", "--normalize", "nfd")),
    "vie_hanoi": ("Vietnamese", "2.5", "6.0", "2.5", ()),
}
_INFLECTED = {  # name of the files: language, best system, minutes, ours
    "hungarian": ("Hungarian", "99.30", "12", "98.90"),
    "maltese": ("Maltese", "88.99", "15", "88.45"),
}

_ENGLISH = PublishedFigure(
    "english", "seq2seq", "English pronunciation, CMU dictionary", "WER", "-", "no published figure for this split"
)
_PRONOUNCED = tuple(
    PublishedFigure(
        f"g2p-{file[:3]}",
        "seq2seq",
        f"{language} pronunciation, SIGMORPHON 2021",
        "WER",
        f"{ensemble} / {single}",
        "ten-model ensemble / one Transformer, Ashby et al. 2021",
        (f"{file}_train.tsv",),
        (f"{file}_dev.tsv",),
        (f"{file}_test.tsv",),
        arguments=("--minutes", "5", "--layers", "2", *options),
        ours=ours,
    )
    for file, (language, ensemble, single, ours, options) in _MEDIUM.items()
)
_INFLECTION = tuple(
    PublishedFigure(
        f"inflect-{file[:3]}",
        "seq2seq",
        f"{language} inflection, SIGMORPHON 2016",
        "exact",
        figure,
        "best system, Cotterell et al. 2016",
        (f"{file}-task1-train",),
        (f"{file}-task1-dev",),
        (f"{file}-task1-test",),
        arguments=("--columns", "source,features,target", "--minutes", minutes, "--layers", "2"),
        ours=ours,
    )
    for file, (language, figure, minutes, ours) in _INFLECTED.items()
)
_TEXTS = (
    PublishedFigure(
        "tag-ewt",
        "tag",
        "English parts of speech, UD EWT",
        "accuracy",
        "94.4",
        "UDPipe 1.2 on gold tokens, without pretrained vectors",
        ("en_ewt-ud-train.conllu",),
        ("en_ewt-ud-dev.conllu",),
        ("en_ewt-ud-test.conllu",),
        arguments=("--tag", "upos", "--epochs", "10"),
        ours="95.52",
    ),
    PublishedFigure(
        "trec",
        "classify",
        "types of questions, TREC",
        "accuracy",
        "88.2",
        "CNN without pretrained vectors, harvardnlp/sent-conv-torch after Kim 2014",
        ("TREC.train.all",),
        (),
        ("TREC.test.all",),
        layout="label first",
        arguments=("--epochs", "8"),
        ours="88.0",
    ),
    PublishedFigure(
        "sst2",
        "classify",
        "sentiment of film reviews, SST-2, whole sentences",
        "accuracy",
        "83.5",
        "the same CNN, trained on phrases too",
        ("stsa.binary.train",),
        ("stsa.binary.dev",),
        ("stsa.binary.test",),
        layout="label first",
        arguments=("--epochs", "6", "--word-dropout", "0.3", "--batch-tokens", "1200"),
        ours="81.6",
    ),
    PublishedFigure(
        "multi30k-de-en",
        "seq2seq",
        "German to English, Multi30k, test 2016",
        "BLEU",
        "36.5",
        "one Transformer, in lower case, with its own tokens",
        ("train.de", "train.en"),
        ("val.de", "val.en"),
        ("test_2016_flickr.de", "test_2016_flickr.en"),
        layout="parallel, lower case",
        arguments=(
            *("--model", "transformer", "--units", "subword", "--subwords", "6000", "--shared", "--layers", "4"),
            *("--dim", "128", "--feedforward", "256", "--dropout", "0.3", "--label-smoothing", "0.1", "--lr", "3e-3"),
            *("--warmup", "1000", "--batch-tokens", "4096", "--minutes", "58", "--patience", "12"),
        ),
        evaluate=("--beam", "5", "--length-penalty", "1"),
        ours="38.65",
    ),
)

RECIPES: tuple[PublishedFigure, ...] = (_ENGLISH, *_PRONOUNCED, *_INFLECTION, *_TEXTS)
