"""Names from a folder cannot become markup."""

from dapperfl.lab.report.markup import Markup, element, join, text


def test_text_is_escaped_and_markup_is_not():
    assert text('<b>&"') == "&lt;b&gt;&amp;&quot;"
    assert text(Markup("<b>")) == "<b>"
    assert join("<", element("i", "&"), 3) == "&lt;<i>&amp;</i>3"


def test_attributes_are_escaped_and_named_as_html_names_them():
    made = element("a", "x", class_="k", stroke_width=2, title='"<', href=None)
    assert made == '<a class="k" stroke-width="2" title="&quot;&lt;">x</a>'


def test_void_elements_have_no_end():
    assert element("meta", name="a") == '<meta name="a">'
    assert element("td") == "<td></td>"
