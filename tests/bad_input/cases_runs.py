"""Run folders that are missing, broken or foreign, and options of the verbs that look at runs."""

from __future__ import annotations

from case import Case
from things import (
    age,
    age_store,
    change,
    cut,
    link_to,
    make_fifo,
    make_folder,
    record_backoffice_run,
    record_run,
    record_training,
)

STORE = "trajectories.sqlite"
ATIF = '{"schema_version": "ATIF-v1.4", "session_id": "x", "agent": {"name": "a", "version": "1"}, "steps": []}'

CASES: tuple[Case, ...] = (
    Case("old option of credit", "train --save", ""),
    Case("report on a folder that is not there", "report nowhere", ""),
    Case("report on a file", "report notes.txt", "", given={"notes.txt": "x"}),
    Case("report on an empty folder", "report run", "", given={"run": make_folder}),
    Case("run.json is not JSON", "report run", "", given={"run": change(record_run, "run.json", b"{")}),
    Case(
        "run.json is a list",
        "compare run other",
        "",
        given={"run": change(record_run, "run.json", b"[]"), "other": record_run},
    ),
    Case("run.json of 40,000 brackets", "grade run", "", given={"run": change(record_run, "run.json", b"[" * 40_000)}),
    Case("run.json of a newer format", "export run --format csv", "", given={"run": age(record_run, format=99)}),
    Case("run.json is a pipe", "grade run", "", given={"run": make_folder, "run/run.json": make_fifo}),
    Case("run.json is a link", "report run", "", given={"run": make_folder, "run/run.json": link_to("/etc/passwd")}),
    Case("run.json is not UTF-8", "report run", "", given={"run": change(record_run, "run.json", b"\xff\xfe{}")}),
    Case("run without its database", "report run", "", given={"run": change(record_run, STORE, None)}),
    Case(
        "a database of no bytes",
        "compare run other",
        "",
        given={"run": change(record_run, STORE, b""), "other": record_run},
    ),
    Case(
        "a database that is text",
        "export run --format jsonl",
        "",
        given={"run": change(record_run, STORE, b"SELECT 1;\n" * 100)},
    ),
    Case("a database that was cut off", "export run --format csv", "", given={"run": cut(record_run, STORE, 9000)}),
    Case("report of a database that was cut off", "report run", "", given={"run": cut(record_run, STORE, 9000)}),
    Case(
        "a database that is a folder",
        "view run",
        "",
        given={"run/run.json": "{}", "run/trajectories.sqlite": make_folder},
    ),
    Case("a record whose config is a list", "grade run", "", given={"run": age(record_run, config=[])}),
    Case(
        "a record without its config", "view run", "", given={"run": change(record_run, "run.json", b'{"format": 1}')}
    ),
    Case("a database of a newer format", "grade run", "", given={"run": age_store(record_backoffice_run)}),
    Case("report on a database of a newer format", "report run", "", given={"run": age_store(record_run)}),
    Case(
        "grade a run without its database",
        "grade run",
        "",
        given={"run": change(record_backoffice_run, "trajectories.sqlite", None)},
    ),
    Case(
        "two broken runs among good ones, compared",
        "compare one two three four",
        "",
        given={
            "one": record_run,
            "two": change(record_run, "run.json", b"{"),
            "three": record_run,
            "four": cut(record_run, STORE, 9000),
        },
        code=1,
        lines=2,
    ),
    Case("report in a format that is not there", "report run --format pdf", "", given={"run": record_run}),
    Case("a run named twice", "report run ./run", "", given={"run": record_run}),
    Case(
        "report over the run's own database", "report run --out run/trajectories.sqlite", "", given={"run": record_run}
    ),
    Case(
        "report over the run's own record", "report run --format json --out run/run.json", "", given={"run": record_run}
    ),
    Case(
        "report over a file that is no report",
        "report run --out bank.py",
        "",
        given={"run": record_run, "bank.py": "mine"},
    ),
    Case("report into a folder that is not there", "report run --out a/b/x.html", "", given={"run": record_run}),
    Case("report into a folder", "report run --out a", "", given={"run": record_run, "a": make_folder}),
    Case(
        "one broken run among good ones",
        "report one two three --format md",
        "",
        given={"one": record_run, "two": change(record_run, "run.json", b"{"), "three": record_run},
    ),
    Case("compare one run", "compare run", "", given={"run": record_run}),
    Case("compare a run with itself", "compare run ./run", "", given={"run": record_run}),
    Case(
        "compare by a metric that is not there",
        "compare run other --metric latency",
        "",
        given={"run": record_run, "other": record_run},
    ),
    Case("compare a good and a broken run", "compare run other", "", given={"run": record_run, "other": make_folder}),
    Case(
        "compare an evaluation with a training run",
        "compare run trained",
        "",
        given={"run": record_run, "trained": record_training},
    ),
    Case(
        "compare runs of other suites",
        "compare run other",
        "",
        given={"run": record_run, "other": lambda p: record_run(p, suite="other")},
    ),
    Case("a tokenizer and a folder that are not there", "view nowhere --tokenizer nothing", ""),
    Case("view a folder that is not there", "view nowhere", ""),
    Case("view at a port in use", "view run --no-open --port {port}", "", given={"run": record_run}),
    Case("view with a tokenizer that is not there", "view run --tokenizer nothing", "", given={"run": record_run}),
    Case(
        "view with a tokenizer that is broken",
        "view run --tokenizer tokenizer.json",
        "",
        given={"run": record_run, "tokenizer.json": "{}"},
    ),
    Case("view an empty folder", "view runs", "", given={"runs": make_folder}),
    Case("watch a folder that is not there", "watch nowhere", ""),
    Case("watch an empty folder", "watch run", "", given={"run": make_folder}),
    Case("export in a format that is not there", "export run --format inspect", "", given={"run": record_run}),
    Case("export without a format", "export run", "", given={"run": record_run}),
    Case(
        "export over the run's own record",
        "export run --format jsonl --out run/run.json",
        "",
        given={"run": record_run},
    ),
    Case(
        "export over the run's own database",
        "export run --format csv --out run/trajectories.sqlite",
        "",
        given={"run": record_run},
    ),
    Case(
        "export into a folder with files",
        "export run --format atif --out mine",
        "",
        given={"run": record_run, "mine/x.txt": "x"},
    ),
    Case(
        "export over a file of the user",
        "export run --format csv --out thesis.docx",
        "",
        given={"run": record_run, "thesis.docx": "mine"},
    ),
    Case(
        "export below a file",
        "export run --format csv --out notes.txt/x.csv",
        "",
        given={"run": record_run, "notes.txt": "x"},
    ),
    Case("a preset in a table without steps", "export run --format csv --preset gigpo", "", given={"run": record_run}),
    Case("export with settings of no preset", "export run --format jsonl --set gamma=1", "", given={"run": record_run}),
    Case(
        "export with an environment of no preset",
        "export run --format jsonl --env bank.py",
        "",
        given={"run": record_run},
    ),
    Case("import a file that is not there", "import nowhere.jsonl --out run", ""),
    Case(
        "import lines with a broken one",
        "import lines.jsonl --out run",
        "",
        given={"lines.jsonl": '{"schema_version": "x"}\n{\n'},
    ),
    Case("import an empty file", "import lines.jsonl --out run", "", given={"lines.jsonl": ""}),
    Case("import a file that is no text", "import data.json --out run", "", given={"data.json": b"\xff\xfe\x00"}),
    Case("import a document of 40,000 brackets", "import data.json --out run", "", given={"data.json": b"[" * 40_000}),
    Case("import a list", "import data.json --out run", "", given={"data.json": "[]"}),
    Case("import a folder without documents", "import mine --out run", "", given={"mine/x.txt": "x"}),
    Case(
        "import a number of 5,000 digits",
        "import data.json --out run",
        "",
        given={"data.json": '{"x": ' + "9" * 5000 + "}"},
    ),
    Case(
        "import over a run",
        "import data.json --out run",
        "",
        given={
            "data.json": ATIF,
            "run": record_run,
        },
    ),
    Case("grade a run whose tasks have changed", "grade run", "", given={"run": record_backoffice_run}),
    Case("grade a run that names no environment", "grade run", "", given={"run": record_run}),
    Case(
        "grade with a grader that is not there", "grade run --grader wisdom", "", given={"run": record_backoffice_run}
    ),
    Case(
        "grade with a grader file that is not there",
        "grade run --grader mine.py",
        "",
        given={"run": record_backoffice_run},
    ),
    Case(
        "grade by an environment that was never run here",
        "grade run",
        "",
        given={"run": lambda p: record_run(p, source="/nowhere/bank.py", suite_version="0", suite_digest="ab")},
    ),
    Case("credit by a preset that is not there", "credit run --preset gigo", "", given={"run": record_run}),
    Case("credit with an option that is not there", "credit run --set omega=1", "", given={"run": record_run}),
    Case("credit with a setting without =", "credit run --set gamma", "", given={"run": record_run}),
    Case("credit with a number that is none", "credit run --set gamma=NaN", "", given={"run": record_run}),
    Case("credit with 5,000 digits", "credit run --set gamma=" + "9" * 5000, "", given={"run": record_run}),
    Case("credit with 40,000 brackets", "credit run --set gamma=" + "[" * 40_000, "", given={"run": record_run}),
    Case("credit that only a model can give", "credit run --preset empg", "", given={"run": record_run}),
    Case("credit by gold that is not at hand", "credit run --preset matchtir", "", given={"run": record_run}),
    Case("credit of a run without episodes", "credit run", "", given={"run": make_folder}),
)
