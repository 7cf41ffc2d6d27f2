"""Options that the verbs of `cotenant study` share.

A module of its own: each verb is loaded alone, when it runs.
"""

from __future__ import annotations

from cotenant.cli.options import cli_option
from cotenant.cli.parameter_types import PATH

out_option = cli_option("--out", type=PATH, required=True, metavar="DIR", help="Folder of the results.")
resume_option = cli_option("--resume", is_flag=True, help="Continue with the results in DIR.")
mlflow_option = cli_option("--mlflow", metavar="URI", help="Log every run to this MLflow server or folder.")
experiment_option = cli_option("--experiment", default="cotenant", metavar="NAME", help="MLflow experiment.")
python_option = cli_option(
    "--python", metavar="PATH", help="Interpreter that runs the jobs; by default the one of cotenant."
)
