// What the keyboard must reach, and the theme does not let it.
function makeReachable() {
  // A table that is wider than the page scrolls in a frame.
  for (const frame of document.querySelectorAll(".md-typeset__scrollwrap")) {
    if (frame.scrollWidth > frame.clientWidth) frame.setAttribute("tabindex", "0");
    else frame.removeAttribute("tabindex");
  }
  // Of the two switches between light and dark, Tab goes to the one that is checked: that must be the one with a label.
  const shown = document.querySelector(".md-option:has(+ label:not([hidden]))");
  if (shown) shown.checked = true;
}
new MutationObserver(makeReachable).observe(document.body, { childList: true, subtree: true, attributeFilter: ["hidden"] });
addEventListener("resize", makeReachable);
makeReachable();
