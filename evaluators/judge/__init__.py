"""A language model as a judge of recorded episodes: asked once; its answers are kept, and grading from them is
offline."""

from gymcp.evaluators.judge.agreement import Agreement, Label, cohens_kappa, measure_agreement
from gymcp.evaluators.judge.answers import Answer, JudgeAnswers
from gymcp.evaluators.judge.prompt import PROMPT_VERSION, Question, question
from gymcp.evaluators.judge.rubric import Point, Rubric, load_rubric
from gymcp.evaluators.judge.rubric_grader import judge_by_rubric
from gymcp.evaluators.judge.verdict import judge_grader

__all__ = [
    "PROMPT_VERSION",
    "Agreement",
    "Answer",
    "JudgeAnswers",
    "Label",
    "Point",
    "Question",
    "Rubric",
    "cohens_kappa",
    "judge_by_rubric",
    "judge_grader",
    "load_rubric",
    "measure_agreement",
    "question",
]
