// A table that is wider than the page scrolls in a frame of the theme, which the keyboard must reach, too.
function makeReachable() {
  for (const frame of document.querySelectorAll(".md-typeset__scrollwrap")) {
    if (frame.scrollWidth > frame.clientWidth) frame.setAttribute("tabindex", "0");
    else frame.removeAttribute("tabindex");
  }
}
new MutationObserver(makeReachable).observe(document.body, { childList: true, subtree: true });
addEventListener("resize", makeReachable);
makeReachable();
