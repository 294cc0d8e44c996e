"""Endpoints that answer as none should, rubrics, and labels of people."""

from __future__ import annotations

from case import Case
from things import RUBRIC, change, make_folder, record_long_reasoning, record_run

RUN = {"mine": record_run, "rubric.toml": RUBRIC}
JUDGE = "judge mine --policy openai:{model}#m --rubric rubric.toml"

CASES: tuple[Case, ...] = (
    Case("a judge that never answers", f"{JUDGE} --request-timeout 0.3", "", given=RUN, model="hangs", grows=("mine",)),
    Case("a judge that closes the connection", JUDGE, "", given=RUN, model="says nothing", grows=("mine",)),
    Case("a judge where nobody listens", JUDGE, "", given=RUN, grows=("mine",)),
    Case("a judge that answers 500", JUDGE, "", given=RUN, model="answers 500", grows=("mine",)),
    Case("a judge that answers HTML", JUDGE, "", given=RUN, model="answers HTML", grows=("mine",)),
    Case("a judge that answers 1 MB of HTML", JUDGE, "", given=RUN, model="answers HTML of 1 MB", grows=("mine",)),
    Case("a judge that answers another object", JUDGE, "", given=RUN, model="answers another object", grows=("mine",)),
    Case(
        "a judge that answers 40,000 brackets", JUDGE, "", given=RUN, model="answers 40,000 brackets", grows=("mine",)
    ),
    Case("a judge that closes in mid-answer", JUDGE, "", given=RUN, model="closes in mid-answer", grows=("mine",)),
    Case(
        "a judge that echoes the key it refuses",
        JUDGE,
        "",
        given=RUN,
        model="refuses and echoes the key",
        grows=("mine",),
    ),
    Case(
        "a judge that does not know the model", JUDGE, "", given=RUN, model="does not know the model", grows=("mine",)
    ),
    Case(
        "a judge that reasons for 1 MB and gives no verdict",
        JUDGE,
        "",
        code=3,
        given=RUN,
        model="reasons for 1 MB",
        grows=("mine",),
    ),
    Case(
        "a judge that writes control characters",
        JUDGE,
        "",
        code=3,
        given=RUN,
        model="judges with control characters",
        grows=("mine",),
    ),
    Case(
        "a run with reasoning of 1 MB",
        JUDGE,
        "",
        code=3,
        given={"mine": record_long_reasoning, "rubric.toml": RUBRIC},
        model="reasons for 1 MB",
        grows=("mine",),
    ),
    Case("a judge without a model and a rubric", "judge mine", "", given={"mine": record_run}),
    Case("a judge without a rubric", "judge mine --policy tiny", "", given={"mine": record_run}),
    Case("a rubric that is not there", JUDGE, "", given={"mine": record_run}),
    Case("a rubric that is not TOML", JUDGE, "", given={"mine": record_run, "rubric.toml": "["}),
    Case("a rubric that is no text", JUDGE, "", given={"mine": record_run, "rubric.toml": b"\xff\xfe\x00"}),
    Case("a rubric without points", JUDGE, "", given={"mine": record_run, "rubric.toml": 'name = "x"\n'}),
    Case(
        "a rubric with an unknown key", JUDGE, "", given={"mine": record_run, "rubric.toml": RUBRIC + "pionts = []\n"}
    ),
    Case(
        "a rubric with a weight of nan",
        JUDGE,
        "",
        given={"mine": record_run, "rubric.toml": 'name = "x"\npoints = [{text = "y", weight = nan}]\n'},
    ),
    Case("no votes", f"{JUDGE} --votes 0", "", given=RUN),
    Case("a judge of a folder without a run", JUDGE, "", given={"mine": make_folder, "rubric.toml": RUBRIC}),
    Case(
        "a judge of a run without its database",
        JUDGE,
        "",
        given={"mine": change(record_run, "trajectories.sqlite", None), "rubric.toml": RUBRIC},
    ),
    Case("labels that are not there", "judge agreement labels.csv --run mine", "", given=RUN),
    Case("labels without their columns", "judge agreement labels.csv", "", given={"labels.csv": "a,b\n1,2\n"}),
    Case(
        "a label that is neither pass nor fail",
        "judge agreement labels.csv --run mine",
        "",
        given={**RUN, "labels.csv": "task,trial,label\ntask0,0,maybe\n"},
    ),
    Case(
        "a trial of 5,000 digits",
        "judge agreement labels.csv --run mine",
        "",
        given={**RUN, "labels.csv": f"task,trial,label\ntask0,{'9' * 5000},pass\n"},
    ),
    Case(
        "labels of a run that was not judged",
        "judge agreement labels.csv --run mine",
        "",
        given={**RUN, "labels.csv": "task,trial,label\ntask0,0,pass\n"},
    ),
    Case("labels that are no text", "judge agreement labels.csv", "", given={"labels.csv": b"\xff\xfe\x00"}),
    Case(
        "labels with a field of 1 MB",
        "judge agreement labels.csv",
        "",
        given={"labels.csv": "label,judge\n" + "x" * 1_000_000 + ",pass\n"},
    ),
)
