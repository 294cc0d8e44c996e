"""A language model's verdict on recorded episodes: asked once, kept, and from then on as offline as any grader."""

from gymcp.evaluators.judge.agreement import Agreement, Label, cohens_kappa, measure_agreement
from gymcp.evaluators.judge.answers import Answer, JudgeAnswers
from gymcp.evaluators.judge.prompt import PROMPT_VERSION, Question, question
from gymcp.evaluators.judge.rubric import Point, Rubric, load_rubric
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
    "judge_grader",
    "load_rubric",
    "measure_agreement",
    "question",
]
