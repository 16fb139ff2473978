"""The page: everything is on it, nothing of the data is taken as markup, and nothing is loaded."""

import base64
import hashlib
import re
from dataclasses import replace
from html.parser import HTMLParser
from pathlib import Path

import pytest

from browser import PHONE, needs_chromium, width_on_a_phone
from mindbatch.decoding import DecodingParams
from mindbatch.engine.request import RequestOutput
from mindbatch.evaluation.comparison import Setup, StrategyRun, compare
from mindbatch.evaluation.page import page, style_sheet
from strategy_results import completion, result

EVIL = (
    "</script><script>alert(1)</script>",
    "<img src=x onerror=alert(1)>",
    "<a href='javascript:alert(1)'>here</a>",
    '"><iframe src="https://example.com">',
    "</style><style>*{display:none}</style>",
    "<!-- ]]> --> <svg onload=alert(1)>",
    "{{ 7 * 7 }} ${7} &lt;b&gt;",
)
TAGS = {
    "html", "head", "meta", "title", "style", "body", "header", "main", "footer", "h1", "h2", "h3", "p", "dl",
    "div", "dt", "dd", "figure", "figcaption", "svg", "desc", "g", "text", "rect", "circle", "line", "table",
    "thead", "tbody", "tr", "th", "td", "details", "summary", "span", "section", "mark",
}  # fmt: skip


class Reader(HTMLParser):
    """The elements of a page, and its text outside of the style sheet."""

    def __init__(self, content: str) -> None:
        super().__init__()
        self.elements: list[tuple[str, dict[str, str | None]]] = []
        self.text = ""
        self._open: list[str] = []
        self.feed(content)
        self.close()

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.elements.append((tag, dict(attrs)))
        if tag not in ("meta", "br"):
            self._open.append(tag)

    def handle_endtag(self, tag: str) -> None:
        assert self._open.pop() == tag, "elements are nested"

    def handle_data(self, data: str) -> None:
        if not self._open or self._open[-1] != "style":
            self.text += data

    def of(self, tag: str) -> list[dict[str, str | None]]:
        return [attributes for name, attributes in self.elements if name == tag]


def evil_page(setup: Setup, evil: str) -> str:
    failed = RequestOutput.failed("1", evil, evil)
    outputs = result(0, completion(0, [1, 2], -1.0, evil), completion(1, [3], -1.0, evil + "x"), prompt=evil)
    params = DecodingParams(do_sample=True, num_return_sequences=2, stop=evil)
    plain = [result(0, completion(0, [2], -1.0)), failed]
    return page(
        compare(
            replace(setup, model=evil),
            [
                StrategyRun("greedy", DecodingParams(), plain, [1]),
                StrategyRun(evil, params, [outputs, failed], [1]),
            ],
        )
    )


@pytest.mark.parametrize("evil", EVIL)
def test_nothing_of_the_data_becomes_markup(setup: Setup, evil: str) -> None:
    reader = Reader(evil_page(setup, evil))
    assert {tag for tag, _ in reader.elements} <= TAGS
    for _, attributes in reader.elements:
        assert not any(name.startswith("on") or name in ("href", "src", "style") for name in attributes)
    assert reader.text.count(evil) >= 4  # the model, the prompts, the outputs, the strategy


@pytest.mark.parametrize("evil", EVIL)
def test_the_same_page_but_for_the_text(setup: Setup, evil: str) -> None:
    def shape(content: str) -> list[str]:
        return [tag for tag, _ in Reader(content).elements if tag not in ("mark", "span")]

    assert shape(evil_page(setup, evil)) == shape(evil_page(setup, "harmless text of some words"))


def test_nothing_is_loaded_and_nothing_may_be(setup: Setup, runs: list[StrategyRun]) -> None:
    content = page(compare(setup, runs))
    assert not re.search(r"\b(src|href)\s*=|url\(|@import|<script|<link", content)
    assert "http:" not in content
    assert "https:" not in content
    (policy,) = (
        meta["content"]
        for meta in Reader(content).of("meta")
        if meta.get("http-equiv") == "Content-Security-Policy"
    )
    digest = base64.b64encode(hashlib.sha256(style_sheet().encode()).digest()).decode()
    assert policy == (f"default-src 'none'; style-src 'sha256-{digest}'; base-uri 'none'; form-action 'none'")
    assert f"<style>{style_sheet()}</style>" in content


def test_it_says_what_there_is(setup: Setup, runs: list[StrategyRun]) -> None:
    reader = Reader(page(compare(setup, runs)))
    text = " ".join(reader.text.split())
    assert "2 decoding strategies compared" in text
    assert "2 prompts · models/tiny · 2026-01-02 03:04 UTC" in text
    assert "2 prompts are too few to tell differences from chance" in text
    assert "one two three four" in text
    assert "do_sample=true, top_p=0.9, max_new_tokens=5" in text
    assert "among the first outputs of all prompts" in text
    assert "Prefix caching was off" in text
    assert len(reader.of("svg")) == 9
    assert all(svg["role"] == "img" and svg["aria-labelledby"] for svg in reader.of("svg"))
    ids = [attributes["id"] for _, attributes in reader.elements if "id" in attributes]
    assert len(ids) == len(set(ids))


def test_differences_are_marked(setup: Setup) -> None:
    def run(name: str, text: str) -> StrategyRun:
        return StrategyRun(name, DecodingParams(), [result(0, completion(0, [1, 2], -1.0, text))], [1.0])

    content = page(
        compare(setup, [run("a", "one two three"), run("b", "one two four"), run("c", "one two three")])
    )
    assert ">one two<mark> four</mark></p>" in content
    assert "the same text as a" in content
    assert "a and c gave" not in content  # their tokens are the same, and those of b are, too
    assert "a, b and c gave the same outputs throughout" in content


def test_a_text_with_nothing_in_common_is_marked_whole(setup: Setup) -> None:
    first = StrategyRun("a", DecodingParams(), [result(0, completion(0, [1], -1.0, "one two"))], [1.0])
    second = StrategyRun("b", DecodingParams(), [result(0, completion(0, [3], -1.0, "three"))], [1.0])
    content = page(compare(setup, [first, second]))
    assert "<mark>three</mark>" in content
    assert "<mark>one" not in content


def test_the_texts_come_first_and_the_best_numbers_are_marked(setup: Setup) -> None:
    def run(name: str, logprob: float) -> StrategyRun:
        results = [result(key, completion(0, [1, 2], logprob)) for key in range(8)]
        return StrategyRun(name, DecodingParams(), results, [1.0])

    content = page(compare(setup, [run("bad", -4.0), run("good", -2.0)]))
    assert content.index("The texts") < content.index("All numbers") < content.index("Measure by measure")
    assert re.findall('<td class="best">([^<]+)</td>', content) == ["● 2.72", "● -2.0", "● -1.000"]
    likeliest = content[content.index('id="ranking-perplexity-title"') :]
    assert likeliest.index(">good<") < likeliest.index(">bad<")


def test_one_strategy_has_no_plot_of_two_measures(setup: Setup, runs: list[StrategyRun]) -> None:
    reader = Reader(page(compare(setup, runs[:1])))
    assert "1 decoding strategy compared" in reader.text
    assert "Likely or varied" not in reader.text


def test_how_it_was_timed_is_said(setup: Setup, runs: list[StrategyRun]) -> None:
    cold = page(compare(replace(setup, warm_up_prompts=0, prefix_caching=True), runs))
    assert "There was no warm-up" in cold
    assert "Prefix caching was on" in cold
    assert "every strategy ran the first 2 prompts" in page(compare(setup, runs))


@needs_chromium
@pytest.mark.slow
def test_nothing_runs_out_of_a_phone(setup: Setup, tmp_path: Path) -> None:
    long = "a_strategy_with_a_name_that_no_phone_has_room_for"
    params = DecodingParams(stop=("x" * 80,))
    runs = [
        StrategyRun(
            name, params, [result(key, completion(0, [1, 2], -float(key))) for key in range(8)], [1.0]
        )
        for name in ("greedy", long)
    ]
    content = page(compare(replace(setup, model=f"/{long}" * 3), runs))
    assert width_on_a_phone(content, tmp_path) <= PHONE


@pytest.mark.parametrize("logprob", [-0.04, 0.0, -0.0])
def test_what_is_shown_as_zero_has_no_minus(setup: Setup, logprob: float) -> None:
    results = [result(key, completion(0, [1, 2], logprob)) for key in range(8)]
    content = page(compare(setup, [StrategyRun("greedy", DecodingParams(), results, [1.0])]))
    assert "log-prob 0.0 " in content
    assert not re.search(r"-0\.0+(?!\d)", content.split("</style>")[1])
