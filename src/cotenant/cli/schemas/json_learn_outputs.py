"""What `--json` prints of the verbs of `cotenant learn`."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Annotated, Any, TypedDict


class ConfigurationsOutput(TypedDict):
    """`cotenant learn generate`: ids of networks."""

    family: str
    seed: int
    configurations: list[str]


class LabelOutput(TypedDict):
    """`cotenant learn run`."""

    runs: Annotated[dict[str, int], "number by status"]
    left: Annotated[int, "configurations that were not run"]
    elapsed_s: float


class DataProblem(TypedDict):
    """A problem of the rows that was accepted."""

    rule: str
    message: str


class CleanOutput(TypedDict):
    """`cotenant learn clean`."""

    runs: int
    superseded: Annotated[int, "runs that a later run of the same configuration replaces"]
    rows: Annotated[dict[str, int], "by family"]
    findings: list[DataProblem]
    files: list[str]


class SummaryLayer(TypedDict):
    """A layer of a model summary."""

    kind: str
    name: str
    output_shape: list[int]
    parameters: int


class SummaryOutput(TypedDict):
    """`cotenant learn summary`."""

    format: str
    batch: int | None
    parameters: int
    layers: list[SummaryLayer]


class ModelScores(TypedDict):
    """Scores of a model on one set of rows; those in bytes are null for a model that predicts classes."""

    rows: int
    accuracy: float
    majority: Annotated[float, "accuracy of the most frequent class"]
    macro_f1: float
    precision: Annotated[float, "mean over the classes, weighted by their rows"]
    recall: Annotated[float, "weighted alike: the accuracy"]
    weighted_f1: float
    below: Annotated[float, "share of rows whose predicted class is too low"]
    confusion: Annotated[list[list[int]], "true class by line, predicted class by column"]
    known: Annotated[int, "rows with a known peak, which the scores in bytes are of"]
    mae_mib: float | None
    p95_mib: float | None
    mape: float | None
    underestimated: Annotated[float | None, "share of rows predicted too low"]
    underestimated_5_percent: Annotated[float | None, "share of rows predicted too low by more than 5 %"]


class NamedScores(ModelScores):
    """The scores of a model, by name."""

    model: str


class ValidatedModel(NamedScores):
    """Cross-validated scores: of all folds together, and of each."""

    folds: list[ModelScores]


class TrainOutput(TypedDict):
    """`cotenant learn train`."""

    weights: str
    card: str
    rows: int
    validated: list[NamedScores]


class TestOutput(ModelScores):
    """`cotenant learn test`."""

    model: str
    family: str


class CrossValidateOutput(TypedDict):
    """`cotenant learn cross-validate`."""

    folds: int
    by: Annotated[str, "`config` or `shape`"]
    split: Annotated[str | None, "one split in place of folds, `70/20/10`"]
    seed: int
    families: dict[str, list[ValidatedModel]]
    skipped: Annotated[list[str], "why a model was left out"]


class AnalyzeOutput(TypedDict):
    """`cotenant learn analyze`."""

    pages: list[str]
    rows: Annotated[dict[str, int], "by family"]


class ReportOutput(TypedDict):
    """`cotenant learn report`."""

    pages: list[str]
    families: dict[str, list[ValidatedModel]]


class FeatureImportance(TypedDict):
    """What a model loses without one of its features."""

    feature: str
    accuracy_decrease: Annotated[float, "with the feature shuffled among the test rows"]
    mae_increase_mib: Annotated[float | None, "by which the mean absolute error grows; null for a classifier"]
    impurity: Annotated[float | None, "share that the trees themselves give to it; null for other models"]


class FamilyImportances(TypedDict):
    """The features of a model on one family, the most important first."""

    accuracy: Annotated[float, "on the test rows, with nothing shuffled"]
    features: list[FeatureImportance]


class ImportancesOutput(TypedDict):
    """`cotenant learn importances`."""

    model: str
    split: str
    seed: int
    repeats: Annotated[int, "shuffles of each feature"]
    families: dict[str, FamilyImportances]


class UtilizationModel(TypedDict):
    """Cross-validated scores of a model of one measure of activity."""

    family: str
    measure: Annotated[str, "`smact`, `smocc` or `drama`"]
    rows: int
    r2: float
    mae: float
    constant_mae: Annotated[float, "of the median"]
    weights: str | None


class UtilizationOutput(TypedDict):
    """`cotenant learn utilization`."""

    measures: list[UtilizationModel]


LEARN_OUTPUTS: Mapping[str, Any] = {
    "learn generate": ConfigurationsOutput,
    "learn run": LabelOutput,
    "learn clean": CleanOutput,
    "learn summary": SummaryOutput,
    "learn train": TrainOutput,
    "learn cross-validate": CrossValidateOutput,
    "learn test": TestOutput,
    "learn analyze": AnalyzeOutput,
    "learn report": ReportOutput,
    "learn importances": ImportancesOutput,
    "learn utilization": UtilizationOutput,
}
"""By verb."""
