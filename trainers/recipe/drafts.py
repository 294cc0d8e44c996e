"""The recipe's speculative drafts: checks of the keys, and the options of the vLLM server."""

from __future__ import annotations

from collections.abc import Collection

from gymcp.agents.policies.pretrained.folders import locate_model
from gymcp.agents.policies.vllm.drafts import MAX_TOKENS, DraftOptions, check_drafts
from gymcp.errors import ConfigError
from gymcp.trainers.recipe.model_path import named_model_folder
from gymcp.trainers.recipe.recipe import DraftRecipe, Recipe


def check_draft_keys(recipe: Recipe, given: Collection[str]) -> None:
    """Raise ConfigError if the drafts lack what they need, or nothing would draft.

    `given`: keys of ``rollout.draft`` in the recipe's table; a default that is written down is as wrong without a
    method as any other value.
    """
    draft, rollout, who = recipe.rollout.draft, recipe.rollout, f"recipe '{recipe.name}'"
    if not draft.method:
        if draft != DraftRecipe() or (given and "method" not in given):
            raise ConfigError(
                f"{who}: rollout.draft has no method: write method = 'ngram', or method = 'draft_model' with the folder"
                " of a smaller model"
            )
        return
    if rollout.engine != "vllm":
        raise ConfigError(
            f"{who}: rollout.draft is for rollout.engine = 'vllm': the embedded engine samples every token itself"
        )
    if rollout.server:
        raise ConfigError(
            f"{who}: rollout.draft is for a server that the run starts, and rollout.server is {rollout.server!r}: start"
            " that one with gymcp serve --draft, and take rollout.draft out"
        )
    if not 1 <= draft.tokens <= MAX_TOKENS:
        raise ConfigError(f"{who}: rollout.draft.tokens must be from 1 to {MAX_TOKENS}, which is vLLM's limit")
    if draft.method == "draft_model" and not draft.model:
        raise ConfigError(f"{who}: rollout.draft.method is 'draft_model': name its folder in rollout.draft.model")
    if draft.method == "ngram" and draft.model:
        raise ConfigError(
            f"{who}: rollout.draft.model is '{draft.model}', and method 'ngram' drafts from earlier text, without a"
            " model; take it out, or write method = 'draft_model'"
        )


def make_draft_options(recipe: Recipe) -> DraftOptions | None:
    """The drafts of the server that the recipe starts; None if it drafts nothing."""
    draft = recipe.rollout.draft
    if not draft.method:
        return None
    model = locate_model(draft.model, f"draft model '{draft.model}'") if draft.model else None
    return DraftOptions(method=draft.method, tokens=draft.tokens, model=model)


def check_draft_model(recipe: Recipe) -> None:
    """Raise ConfigError if the draft model is missing, or its vocabulary is not the policy's."""
    options = make_draft_options(recipe)
    if options is not None:
        check_drafts(options, named_model_folder(recipe.model), f"recipe '{recipe.name}'")
