"""Exports the server's metrics for Prometheus, under vLLM's names where the meaning is the same."""

from collections.abc import Iterator

from prometheus_client import CollectorRegistry, Counter, Histogram, generate_latest
from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, Metric

from mindbatch.engine.request import RequestOutput
from mindbatch.engine.statistics import EngineStatistics

CONTENT_TYPE = "text/plain; version=0.0.4; charset=utf-8"
_SECONDS = (0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1, 2.5, 5, 10, 30, 60, 120, 300, 600)
_OF_ENGINE = {
    "vllm:num_requests_running": ("running_sequences", "Sequences that are generating."),
    "vllm:num_requests_waiting": ("waiting_requests", "Requests that wait to be scheduled."),
    "vllm:kv_cache_usage_perc": ("cache_use", "Share of the cache blocks in use; 1 is all."),
}
_TOTALS = {
    "vllm:prompt_tokens": ("prompt_tokens", "Tokens of the prompts admitted."),
    "vllm:prefix_cache_hits": ("cached_prompt_tokens", "Prompt tokens found in the prefix cache."),
    "vllm:generation_tokens": ("generated_tokens", "Tokens generated."),
    "vllm:num_preemptions": ("num_preemptions", "Sequences that were pre-empted."),
}


class Metrics:
    def __init__(self, model_name: str) -> None:
        self._registry = CollectorRegistry()
        self._registry.register(self)
        self._model_name = model_name
        self._first_token = self._histogram(
            "vllm:time_to_first_token_seconds", "From a request to its first token."
        )
        self._latency = self._histogram(
            "vllm:e2e_request_latency_seconds", "From a request to its last token."
        )
        self._success = Counter(
            "vllm:request_success",
            "Finished outputs by reason.",
            ("model_name", "finished_reason"),
            registry=self._registry,
        )
        self._answers = Counter(
            "mindbatch:http_responses",
            "Answers by route and status.",
            ("route", "status"),
            registry=self._registry,
        )

    def _histogram(self, name: str, text: str) -> Histogram:
        histogram = Histogram(name, text, ("model_name",), registry=self._registry, buckets=_SECONDS)
        return histogram.labels(self._model_name)

    def first_token(self, seconds: float) -> None:
        self._first_token.observe(seconds)

    def finished(self, output: RequestOutput) -> None:
        self._latency.observe(output.seconds)
        for completion in output.outputs:
            self._success.labels(self._model_name, completion.finish_reason).inc()

    def answered(self, route: str, status: int) -> None:
        """Counts an answer by the pattern of its route, not by the path that a client sent."""
        self._answers.labels(route, str(status)).inc()

    def page(self, statistics: EngineStatistics, batches: dict[str, int]) -> bytes:
        self._statistics, self._batches = statistics, batches
        return generate_latest(self._registry)

    def collect(self) -> Iterator[Metric]:
        """Yields the metrics of engine and batches to Prometheus's registry."""
        for family, counts in ((GaugeMetricFamily, _OF_ENGINE), (CounterMetricFamily, _TOTALS)):
            for name, (field, text) in counts.items():
                metric = family(name, text, labels=("model_name",))
                metric.add_metric((self._model_name,), getattr(self._statistics, field))
                yield metric
        batches = GaugeMetricFamily("mindbatch:batches", "Batches by their status.", labels=("status",))
        for status, count in self._batches.items():
            batches.add_metric((status,), count)
        yield batches
