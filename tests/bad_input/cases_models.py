"""Endpoints that answer as none should, models that cannot be served, rubrics, and labels of people."""

from __future__ import annotations

from case import Case, Given
from things import RUBRIC, change, make_folder, record_long_reasoning, record_run

RUN: Given = {"mine": record_run, "rubric.toml": RUBRIC}
JUDGE = "judge mine --policy openai:{model}#m --rubric rubric.toml"

CASES: tuple[Case, ...] = (
    Case(
        "a judge that never answers",
        f"{JUDGE} --request-timeout 0.3",
        (
            "the policy does not answer: model 'm' at http://",
            "/v1: says nothing: no answer to GET /models within 0.3 s; is it still starting, or is something else at",
        ),
        given=RUN,
        model="hangs",
        grows=("mine",),
    ),
    Case(
        "a judge that closes the connection",
        JUDGE,
        (
            "the judge does not answer: model 'm' at http://",
            "/v1: no answer in 6 attempts; the last: the connection was closed before the whole answer had come; 0",
        ),
        given=RUN,
        model="says nothing",
        grows=("mine",),
    ),
    Case(
        "a judge where nobody listens",
        JUDGE,
        (
            "the judge does not answer: model 'm' at http://",
            "/v1: no answer in 6 attempts; the last: the connection was refused: nothing listens at that address; 0",
        ),
        given=RUN,
        grows=("mine",),
    ),
    Case(
        "a judge that answers 500",
        JUDGE,
        (
            "the judge does not answer: model 'm' at http://",
            "/v1: no answer in 6 attempts; the last: status 500: out of order; 0 answers are kept: judge again to go",
        ),
        given=RUN,
        model="answers 500",
        grows=("mine",),
    ),
    Case(
        "a judge that answers HTML",
        JUDGE,
        (
            "the judge does not answer: model 'm' at http://",
            "/v1: the answer is not JSON:",
        ),
        given=RUN,
        model="answers HTML",
        grows=("mine",),
    ),
    Case(
        "a judge that answers 1 MB of HTML",
        JUDGE,
        (
            "the judge does not answer: model 'm' at http://",
            "/v1: status 404:",
            "/v1/chat/completions); 0 answers are kept: judge again to go on",
        ),
        given=RUN,
        model="answers HTML of 1 MB",
        grows=("mine",),
    ),
    Case(
        "a judge that answers another object",
        JUDGE,
        (
            "the judge does not answer: model 'm' at http://",
            "/v1: the answer is no chat completion: it lacks choices[0].message, or its parts are of other kinds:",
        ),
        given=RUN,
        model="answers another object",
        grows=("mine",),
    ),
    Case(
        "a judge that answers 40,000 brackets",
        JUDGE,
        ("the judge does not answer: model 'm' at http://", "/v1: the answer is nested more than 60 deep:"),
        given=RUN,
        model="answers 40,000 brackets",
        grows=("mine",),
    ),
    Case(
        "a judge that closes in mid-answer",
        JUDGE,
        (
            "the judge does not answer: model 'm' at http://",
            "/v1: no answer in 6 attempts; the last: the connection was closed before the whole answer had come; 0",
        ),
        given=RUN,
        model="closes in mid-answer",
        grows=("mine",),
    ),
    Case(
        "a judge that echoes the key it refuses",
        JUDGE,
        (
            "the judge does not answer: model 'm' at http://",
            "/v1: refuses the key (status 401): Incorrect API key provided: (the key); 0 answers are kept: judge",
        ),
        given=RUN,
        model="refuses and echoes the key",
        grows=("mine",),
    ),
    Case(
        "a judge that does not know the model",
        JUDGE,
        (
            "the judge does not answer: model 'm' at http://",
            "/v1: status 404: the model does not exist (asked was http://",
            "/v1/chat/completions); 0 answers are kept: judge again to go on",
        ),
        given=RUN,
        model="does not know the model",
        grows=("mine",),
    ),
    Case(
        "a judge that reasons for 1 MB and gives no verdict",
        JUDGE,
        "task0: grader raised NoVerdict: judge: 0 of 1 answers are verdicts: no JSON object in 'I cannot decide.'",
        code=3,
        given=RUN,
        model="reasons for 1 MB",
        grows=("mine",),
    ),
    Case(
        "a judge that writes control characters",
        JUDGE,
        "task0: grader raised NoVerdict: judge: 0 of 1 answers are verdicts: no JSON object in",
        code=3,
        given=RUN,
        model="judges with control characters",
        grows=("mine",),
    ),
    Case(
        "a run with reasoning of 1 MB",
        JUDGE,
        "long: grader raised NoVerdict: judge: 0 of 1 answers are verdicts: no JSON object in 'I cannot decide.'",
        code=3,
        given={"mine": record_long_reasoning, "rubric.toml": RUBRIC},
        model="reasons for 1 MB",
        grows=("mine",),
    ),
    Case(
        "a judge without a model and a rubric",
        "judge mine",
        "judge: --policy and --rubric are missing: --policy tiny | smollm2 | local:PATH | vllm:URL#MODEL |"
        " openai:URL#MODEL;",
        given={"mine": record_run},
    ),
    Case(
        "a judge without a rubric",
        "judge mine --policy tiny",
        ("judge: --rubric is missing: --rubric a TOML file, see /", "/docs/judge.md"),
        given={"mine": record_run},
    ),
    Case(
        "a rubric that is not there",
        JUDGE,
        "rubric rubric.toml: cannot be read: No such file or directory",
        given={"mine": record_run},
    ),
    Case(
        "a rubric that is not TOML",
        JUDGE,
        "rubric rubric.toml: is not TOML:",
        given={"mine": record_run, "rubric.toml": "["},
    ),
    Case(
        "a rubric that is no text",
        JUDGE,
        "rubric rubric.toml: is not TOML:",
        given={"mine": record_run, "rubric.toml": b"\xff\xfe\x00"},
    ),
    Case(
        "a rubric without points",
        JUDGE,
        "rubric rubric.toml: is empty: give it points, points of tasks, or a scale with a text",
        given={"mine": record_run, "rubric.toml": 'name = "x"\n'},
    ),
    Case(
        "a rubric with an unknown key",
        JUDGE,
        "rubric rubric.toml: unknown key 'pionts'; have name, points, scale, tasks, text,",
        given={"mine": record_run, "rubric.toml": RUBRIC + "pionts = []\n"},
    ),
    Case(
        "a rubric with a weight of nan",
        JUDGE,
        "rubric rubric.toml: points: number 1: the weight must be more than 0, not nan",
        given={"mine": record_run, "rubric.toml": 'name = "x"\npoints = [{text = "y", weight = nan}]\n'},
    ),
    Case(
        "no votes",
        f"{JUDGE} --votes 0",
        "judge run: invalid value for '--votes': must be greater than or equal to 1; see gymcp judge run --help",
        given=RUN,
    ),
    Case(
        "a judge of a folder without a run",
        JUDGE,
        "run folder mine: holds no run.json",
        given={"mine": make_folder, "rubric.toml": RUBRIC},
    ),
    Case(
        "a judge of a run without its database",
        JUDGE,
        "run folder mine: holds no trajectories.sqlite",
        given={"mine": change(record_run, "trajectories.sqlite", None), "rubric.toml": RUBRIC},
    ),
    Case(
        "labels that are not there",
        "judge agreement labels.csv --run mine",
        "labels labels.csv: cannot be read: No such file or directory",
        given=RUN,
    ),
    Case(
        "labels without their columns",
        "judge agreement labels.csv",
        "labels labels.csv: needs the columns label, and id (or task and trial) or judge; has a, b",
        given={"labels.csv": "a,b\n1,2\n"},
    ),
    Case(
        "a label that is neither pass nor fail",
        "judge agreement labels.csv --run mine",
        "labels labels.csv, line 2: label: is 'maybe'; write pass or fail, yes or no, 1 or 0",
        given={**RUN, "labels.csv": "task,trial,label\ntask0,0,maybe\n"},
    ),
    Case(
        "a trial of 5,000 digits",
        "judge agreement labels.csv --run mine",
        "labels labels.csv, line 2: trial is '999999999999999999999999999999999999999999999999999999999999', not the",
        given={**RUN, "labels.csv": f"task,trial,label\ntask0,{'9' * 5000},pass\n"},
    ),
    Case(
        "labels of a run that was not judged",
        "judge agreement labels.csv --run mine",
        "labels labels.csv: none of the 1 fits the run mine: task0 trial 0: has no verdict of a judge; judge the run",
        given={**RUN, "labels.csv": "task,trial,label\ntask0,0,pass\n"},
    ),
    Case(
        "labels that are no text",
        "judge agreement labels.csv",
        "labels labels.csv: is not CSV in UTF-8:",
        given={"labels.csv": b"\xff\xfe\x00"},
    ),
    Case(
        "labels with a field of 1 MB",
        "judge agreement labels.csv",
        "labels labels.csv: is not CSV in UTF-8:",
        given={"labels.csv": "label,judge\n" + "x" * 1_000_000 + ",pass\n"},
    ),
    Case("serving a model that is not there", "serve nowhere", "vllm: no model in nowhere: it has no config.json"),
    Case(
        "serving a folder without a model",
        "serve mine",
        "vllm: no model in mine: it has no config.json",
        given={"mine/x.txt": "x"},
    ),
    Case("serving a file", "serve mine", "vllm: no model in mine: it has no config.json", given={"mine": "x"}),
    Case(
        "serving a broken model",
        "serve mine",
        "vllm: no tokenizer in mine: it has no tokenizer.json",
        given={"mine/config.json": "{"},
    ),
    Case(
        "serving with a draft model that is not there",
        "serve mine --draft nowhere",
        "vllm: no draft model in nowhere: it has no config.json",
        given={"mine/config.json": "{}", "mine/tokenizer.json": "{}"},
    ),
    Case(
        "serving with a number of drafted tokens, and without drafts",
        "serve mine --draft-tokens 3",
        "serve: --draft-tokens 3: nothing drafts without --draft; add --draft ngram, or --draft FOLDER with a smaller",
        given={"mine/config.json": "{}", "mine/tokenizer.json": "{}"},
    ),
)
