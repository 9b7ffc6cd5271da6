"""The reranker: a sentence-transformers cross-encoder behind LangChain's `BaseDocumentCompressor`."""

import asyncio
import logging
from collections.abc import Sequence
from functools import cached_property
from typing import TYPE_CHECKING, Any

from langchain_core.callbacks import Callbacks
from langchain_core.documents import BaseDocumentCompressor, Document
from pydantic import ConfigDict, Field, PrivateAttr

from llm.options import RerankerOptions
from llm.passes import Passes, batches, load, result_of

if TYPE_CHECKING:
    from sentence_transformers import CrossEncoder

TOO_LONG = (
    "%d of %d passages are, with their question, longer than the %d tokens that %s reads, the longest has %d: "
    "their ends do not count in the scores"
)

Pair = tuple[str, str]

log = logging.getLogger(__name__)


class NoReranker(Exception):
    """The model is a classifier with several labels, none of which is known to mean relevance."""

    def __init__(self, model: str, labels: int) -> None:
        super().__init__(
            f"{model} has {labels} labels; a reranker has one, the relevance: give a cross-encoder for ranking"
        )


class Reranker(BaseDocumentCompressor):
    """Scores passages for a question with a cross-encoder, which reads the two together.

    A score is the sigmoid of the model's one logit, in (0, 1), higher is better, whatever activation the model's
    configuration names: many rerankers name none and give logits. A passage that does not fit the model's limit
    beside its question is cut by the model, which a warning tells with its numbers, once a pass.

    Loading waits until the first text. Threads and event loops may share a reranker: questions that come together
    share passes.
    """

    model_config = ConfigDict(frozen=True, extra="forbid")

    options: RerankerOptions = RerankerOptions()
    top_n: int | None = Field(None, ge=1)
    """How many documents `compress_documents` keeps; None: all."""

    _passes: Passes[Pair, float] = PrivateAttr()

    def model_post_init(self, context: Any, /) -> None:
        self._passes = Passes(self._score, "reranker")

    @cached_property
    def _model(self) -> "CrossEncoder":
        from sentence_transformers import CrossEncoder

        model = load(CrossEncoder, self.options.model, self.options.device)
        if model.num_labels != 1:
            raise NoReranker(self.options.model, model.num_labels)
        return model

    def score(self, query: str, texts: Sequence[str]) -> list[float]:
        """How relevant each text is to the query, in (0, 1), in the order of the texts. Raises NoReranker."""
        return result_of(self._passes.share([(query, text) for text in texts])) if texts else []

    async def ascore(self, query: str, texts: Sequence[str]) -> list[float]:
        """`score` off the event loop; when its caller is cancelled before its pass, it is left out of it."""
        return await asyncio.wrap_future(self._passes.share([(query, text) for text in texts])) if texts else []

    def compress_documents(
        self, documents: Sequence[Document], query: str, callbacks: Callbacks | None = None
    ) -> list[Document]:
        """The `top_n` most relevant documents, best first, as copies with `metadata["relevance_score"]`."""
        return self._best(documents, self.score(query, [document.page_content for document in documents]))

    async def acompress_documents(
        self, documents: Sequence[Document], query: str, callbacks: Callbacks | None = None
    ) -> list[Document]:
        """`compress_documents` off the event loop."""
        return self._best(documents, await self.ascore(query, [document.page_content for document in documents]))

    def _best(self, documents: Sequence[Document], scores: list[float]) -> list[Document]:
        order = sorted(range(len(documents)), key=lambda at: -scores[at])[: self.top_n]
        return [
            documents[at].model_copy(update={"metadata": documents[at].metadata | {"relevance_score": scores[at]}})
            for at in order
        ]

    def _score(self, pairs: list[Pair]) -> list[float]:
        """Everything below runs on the thread of passes."""
        different = list(dict.fromkeys(pairs))
        scores: dict[Pair, float] = {}
        for rows in batches(self._lengths(different), self.options.batch_tokens):
            scores |= self._predict([different[row] for row in rows])
        return [scores[pair] for pair in pairs]

    def _lengths(self, pairs: list[Pair]) -> list[int]:
        """What the model reads of each pair, in tokens; warns where that is not all."""
        limit = self._model.max_seq_length or 512
        queries, texts = [query for query, _ in pairs], [text for _, text in pairs]
        lengths = [len(ids) for ids in self._model.tokenizer(queries, texts, verbose=False)["input_ids"]]
        if too_long := sum(length > limit for length in lengths):
            log.warning(TOO_LONG, too_long, len(pairs), limit, self.options.model, max(lengths))
        return [min(length, limit) for length in lengths]

    def _predict(self, pairs: list[Pair]) -> dict[Pair, float]:
        from torch.nn import Sigmoid

        scores = self._model.predict(pairs, batch_size=len(pairs), activation_fn=Sigmoid(), show_progress_bar=False)
        return dict(zip(pairs, scores.tolist(), strict=True))
