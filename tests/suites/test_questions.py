"""Questions to the user: one counts if it asks for the missing fact, and not by a word that any question has."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Mapping

import pytest

from gymcp.envs.suites.backoffice import underspecified_requests as backoffice
from gymcp.envs.suites.generation.underspecified_pairs import Hidden
from gymcp.envs.suites.workbench import underspecified_requests as workbench
from gymcp.envs.users import ONE_THING, AskableUser
from gymcp.evaluators.graders.questions import asks_one_thing, match_facts
from gymcp.types import Fact, Suite

PARTS: Mapping[str, Hidden] = {
    "order": backoffice.ORDER,
    "ticket": backoffice.TICKET,
    "customer": backoffice.NAME,
    "city": backoffice.CITY,
    "amount": backoffice.AMOUNT,
    "pieces": backoffice.PIECES,
    **workbench.HIDDEN,
}
FACTS = {name: Fact(name=name, words=part.words, says="It is so.") for name, part in PARTS.items()}

ASKING = (
    ("order", "Which order is it?"),
    ("order", "What is the order number?"),
    ("order", "Could you give me the number of the order?"),
    ("order", "Which of your orders do you mean, please?"),
    ("order", "What's the ID of the order on your desk?"),
    ("ticket", "Which ticket came in this morning?"),
    ("ticket", "Please specify the ticket."),
    ("customer", "Who is the customer on the phone?"),
    ("customer", "What is the customer's name?"),
    ("customer", "May I have the name of the caller?"),
    ("city", "What is the new city?"),
    ("city", "Where does the customer live now?"),
    ("amount", "How much did you promise?"),
    ("amount", "What sum was it?"),
    ("pieces", "How many were counted?"),
    ("handover", "Where should it be saved?"),
    ("release_note", "What is the path of the usual file?"),
    ("release_note", "Which file do you usually use?"),
    ("invite", "Who is our guest?"),
    ("invite", "Whom should I invite?"),
    ("reassign", "Which colleague did you mention?"),
    ("reassign", "To whom should I assign the tickets?"),
    ("leaver", "Who will be the successor?"),
    ("project_lead", "Who is going to be the new manager?"),
    ("triage", "What day did we agree on?"),
    ("restock", "How many boxes came?"),
    ("commit_or_hold", "What is the limit?"),
    ("book_room", "How many of you are there?"),
    ("meeting_abroad", "At what time does it start?"),
    ("if_paid", "What is the usual comment?"),
    ("wind_up", "How should the branch be called?"),
)
"""(part, question that asks for it)"""
NOT_ASKING = (
    ("order", "Which customer placed the order?"),
    ("order", "Should I cancel the order, which is open?"),
    ("order", "What is the status of the order?"),
    ("order", "What number of pieces do you want?"),
    ("order", "Which is the right one?"),
    ("ticket", "Which priority should the ticket get?"),
    ("ticket", "Who opened the ticket?"),
    ("customer", "Who are you?"),
    ("customer", "What is the name of the product?"),
    ("customer", "Is the customer satisfied?"),
    ("city", "Where do I find the form?"),
    ("city", "Is the city in Italy?"),
    ("amount", "Is the amount final?"),
    ("amount", "How many orders are there?"),
    ("pieces", "What is the number of the item?"),
    ("pieces", "Is the stock low?"),
    ("handover", "Where are you?"),
    ("handover", "Should the file have a title?"),
    ("invite", "Who are you?"),
    ("invite", "Is the guest important?"),
    ("reassign", "What is the name of the file?"),
    ("leaver", "When does the successor start?"),
    ("triage", "When shall I begin?"),
    ("restock", "Which number is on the shelf?"),
    ("commit_or_hold", "Is that allowed?"),
    ("book_room", "Which people came last time?"),
    ("meeting_abroad", "Where does it start?"),
    ("if_paid", "Should the comment be polite?"),
    ("wind_up", "Who called?"),
)
"""(part, question that names it, or asks for something else)"""
MISSED = (
    ("order", "The order on your desk: could I have its details?"),
    ("amount", "I need to know the figure that you gave them."),
    ("invite", "The guest would be ...?"),
)
"""(part, question that a person would take for asking): another wording is answered with "I do not know"."""
WRONGLY_COUNTED = (
    ("order", "Is the order id needed for a refund?"),
    ("customer", "Which customer tariff applies?"),
    ("pieces", "How many shelves are there?"),
)
"""(part, question about something else that counts)"""
EVERYTHING = (
    "Which order, which ticket, which city, how much, how many, who and when?",
    "Order number, ticket number, customer name, branch name, file name?",
)


def counts(part: str, question: str) -> bool:
    return match_facts(question, [FACTS[part]]) != []


def test_a_question_for_the_missing_fact_counts() -> None:
    assert [each for each in ASKING if not counts(*each)] == []


def test_a_question_that_only_names_it_or_asks_for_something_else_does_not() -> None:
    assert [each for each in NOT_ASKING if counts(*each)] == []


def test_the_limits_of_the_recognition_are_as_documented() -> None:
    """docs/suites.md gives these counts: of 34 asking questions 3 are missed, of 32 others 3 count."""
    assert [counts(*each) for each in MISSED] == [False] * 3
    assert [counts(*each) for each in WRONGLY_COUNTED] == [True] * 3
    assert (len(ASKING) + len(MISSED), len(NOT_ASKING) + len(WRONGLY_COUNTED)) == (34, 32)


def test_no_entry_is_a_word_that_any_question_has() -> None:
    common = {"which", "what", "who", "whom", "where", "when", "how", "many", "much", "number", "id", "name"}
    assert [(name, entry) for name, fact in FACTS.items() for entry in fact.words if set(entry.split()) <= common] == [
        (name, entry) for name in ("amount", "pieces", "restock", "commit_or_hold", "book_room", "wind_up")
        for entry in FACTS[name].words if entry in ("how much", "how many", "what name", "which name", "how name")
    ]  # fmt: skip


@pytest.mark.parametrize("question", EVERYTHING)
def test_a_question_for_everything_gets_nothing(question: str) -> None:
    assert not asks_one_thing(question)
    assert [name for name in FACTS if counts(name, question)] == []
    user = AskableUser(prompts=("Go.",), facts=tuple(FACTS.values()))
    assert asyncio.run(user.answer_question(question)) == ONE_THING


@pytest.mark.parametrize("make_suite", [backoffice.make_suite, workbench.make_suite])
def test_the_question_for_one_fact_gets_few_others(make_suite: Callable[[], Suite]) -> None:
    """No single question that the suites' oracles ask opens more than a third of the kinds of facts."""
    questions = {part.question for part in PARTS.values()}
    for question in questions:
        opened = [name for name in FACTS if counts(name, question)]
        assert 1 <= len(opened) <= len(FACTS) / 3, (question, opened)
    assert make_suite().version == "3"
