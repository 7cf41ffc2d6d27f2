import re
from html.parser import HTMLParser

from cotenant.core.trace import MemoryEvent
from cotenant.estimators.allocation_history import allocation_history
from cotenant.estimators.estimate_page import estimate_page, peak_by_module
from cotenant.estimators.traced import TracedEstimator
from cotenant.gpu_specs import gpu_spec
from traces import a_trace

MiB = 2**20
NAME = "<script>alert(1)</script>"


def an_event(action, storage_id, mib=0, module="", phase="forward", category="activation"):
    return MemoryEvent(
        action, storage_id, mib * MiB, category if action == "alloc" else "", phase, module, stream=0, device=0
    )


def a_result():
    return TracedEstimator().on(
        a_trace(
            [
                an_event("alloc", 1, 100, NAME, category="parameter"),
                an_event("alloc", 2, 300, "net.a"),
                an_event("alloc", 3, 200, "net.a", phase="backward"),
                an_event("free", 2, phase="backward"),
                an_event("alloc", 4, 50, "net.b", phase="step"),
            ]
        ),
        gpu_spec("A100-40GB"),
    )


class Tags(HTMLParser):
    def __init__(self, text):
        super().__init__()
        self.elements = []
        self.feed(text)

    def handle_starttag(self, tag, attrs):
        self.elements.append((tag, dict(attrs)))


def test_the_peak_is_reported_by_module():
    result = a_result()
    history = allocation_history(result.replay_input, result.capacity_bytes)
    assert peak_by_module(history) == [("net.a", 500 * MiB), (NAME, 100 * MiB)]


def test_the_page_is_one_file_and_names_are_text():
    text = estimate_page(a_result(), f"{NAME} on a GPU").text()
    found = Tags(text)
    assert not {"script", "link", "img", "iframe"} & {tag for tag, _ in found.elements}
    assert not [a for _, attributes in found.elements for a in attributes if a.startswith("on") or a in ("src", "href")]
    assert "600.0 MiB" in text  # peak allocated
    for section in ("Memory over the traced steps", "At the peak of allocated bytes", "What if", "Fits on"):
        assert section in text


def test_jupyter_shows_the_page_and_the_numbers():
    result = a_result()
    (frame,) = [attributes for tag, attributes in Tags(result._repr_html_()).elements if tag == "iframe"]
    assert "Fits on" in frame["srcdoc"]
    table = result.estimate._repr_html_()
    assert "<td>600.0 MiB</td>" in table
    assert re.search(r"<th>parameter</th><td>100.0 MiB", table)
