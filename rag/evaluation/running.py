"""Every variant asked every question: of one engine, or of the search alone."""

import asyncio
from collections.abc import Callable, Iterator, Sequence
from contextlib import AbstractContextManager, closing, contextmanager
from dataclasses import dataclass
from functools import partial
from pathlib import PurePosixPath

from ingest.collection import journal_path
from ingest.command import CommandRefused
from ingest.embedder import EmbedderLike
from ingest.journal import Journal
from ingest.knowledge_bases import EmbedderMismatch, UnknownKnowledgeBase, unknown
from ingest.recovery import is_there
from ingest.settings import StoreOptions
from llm.engine import Engine
from llm.models import ModelNotFound
from llm.protocol import EngineLike, EngineStartFailed, EngineStopping, EngineUnavailable
from llm.rerank import NoReranker
from rag.app import StartEngine, build_library, build_service
from rag.evaluation.asking import Ask, ask_all, of_retriever, of_service
from rag.evaluation.cases import Case
from rag.evaluation.figures import Run
from rag.evaluation.judging import judge
from rag.evaluation.sweep import Variant
from rag.library import EmptyKnowledgeBase

OF_THE_MODELS = (EngineStartFailed, EngineStopping, EngineUnavailable, ModelNotFound, NoReranker)
OF_THE_STORE = (EmbedderMismatch, EmptyKnowledgeBase, UnknownKnowledgeBase)
MOST_NAMED = 5


@dataclass(frozen=True)
class Asking:
    """What is asked, how many at a time, and who hears of each question that has been."""

    cases: Sequence[Case]
    variants: Sequence[Variant]
    at_once: int
    tell: Callable[[], object]

    async def runs(self, open_variant: Callable[[Variant], AbstractContextManager[Ask]]) -> list[Run]:
        """One of each variant. What its first question would load has been loaded: that is asked once before."""
        runs = []
        for variant in self.variants:
            with open_variant(variant) as ask:
                await ask_all(self.cases[:1], ask, at_once=1, tell=lambda: None)
                turns = await ask_all(self.cases, ask, at_once=self.at_once, tell=self.tell)
            k = variant.settings.answer.retrieve
            records = judge(self.cases, turns, k=k, grounding=variant.settings.grounding)
            runs.append(Run(variant.name, k, variant.swept, records))
        return runs


def evaluate(
    asking: Asking,
    *,
    retrieval_only: bool,
    warn: Callable[[str], None],
    start_engine: StartEngine | None = None,
    embedder: EmbedderLike | None = None,
) -> list[Run]:
    """A run of each variant. They differ in no setting of engine or embedder: these are the first one's.

    `warn` hears what a user should know beforehand. Engine and embedder are the settings' unless a test gives its own.
    Raises CommandRefused.
    """
    try:
        for store in {
            variant.settings.store.knowledge_base: variant.settings.store for variant in asking.variants
        }.values():
            _check_base(store, asking.cases, warn)
        if retrieval_only:
            _check_follow_ups(asking)
            return asyncio.run(_searches(asking, embedder))
        return asyncio.run(_turns(asking, start_engine, embedder))
    except (*OF_THE_MODELS, *OF_THE_STORE) as error:
        raise CommandRefused(str(error)) from error


def _check_follow_ups(asking: Asking) -> None:
    rewriting = any(one.settings.answer.profile_for(None).follow_up == "rewrite" for one in asking.variants)
    if rewriting and any(case.history for case in asking.cases):
        raise CommandRefused(
            "follow-ups are rewritten by the model, which --retrieval-only does without: leave that out, or add "
            "--sweep answer.follow_up=join"
        )


def _check_base(store: StoreOptions, cases: Sequence[Case], warn: Callable[[str], None]) -> None:
    """Before a model is loaded: that there is something in it, and the files that the questions name."""
    name = store.knowledge_base
    if not is_there(store.path, name):
        raise unknown(store.path, name)
    with closing(Journal(journal_path(store.path, name))) as journal:
        sources = {str(PurePosixPath(document.source)) for document in journal.documents()}
    if not sources:
        raise EmptyKnowledgeBase(name)
    wanted = {case.file for case in cases if case.file}
    if not (missing := sorted(wanted - sources)):
        return
    more = f" and {len(missing) - MOST_NAMED} more" if len(missing) > MOST_NAMED else ""
    said = f"not in knowledge base {name!r}, but expected: {', '.join(missing[:MOST_NAMED])}{more}"
    if len(missing) == len(wanted):
        raise CommandRefused(f"{said}; `file` is the name that `groundwell documents list` gives")
    warn(said)


async def _searches(asking: Asking, embedder: EmbedderLike | None) -> list[Run]:
    embedder = await asyncio.to_thread(_embedder, asking, embedder)

    @contextmanager
    def opened(variant: Variant) -> Iterator[Ask]:
        settings = variant.settings
        with closing(build_library(settings, embedder)) as library:
            retriever = library.retriever(settings.store.knowledge_base)
            yield of_retriever(retriever, settings.answer.profile_for(None))

    return await asking.runs(opened)


async def _turns(asking: Asking, start_engine: StartEngine | None, embedder: EmbedderLike | None) -> list[Run]:
    options = asking.variants[0].settings.engine

    @contextmanager
    def opened(engine: EngineLike, variant: Variant) -> Iterator[Ask]:
        service = build_service(variant.settings, engine, embedder)
        with closing(service.library):
            yield of_service(service, service.library.retriever(service.default_knowledge_base))

    async with (start_engine or (lambda: Engine.start(options)))() as engine:
        embedder = await asyncio.to_thread(_embedder, asking, embedder)
        return await asking.runs(partial(opened, engine))


def _embedder(asking: Asking, given: EmbedderLike | None) -> EmbedderLike:
    from llm.embeddings import Embedder

    return given or Embedder(asking.variants[0].settings.embedder)
