// Everything works without this script. With it pages update by themselves, and times stay true.
"use strict";
(() => {
  const every = 3000;

  const ago = (at) => {
    const s = Math.floor((Date.now() - at) / 1000);
    if (s < -60) return "in the future";
    if (s < 1) return "now";
    if (s < 60) return `${s} s ago`;
    if (s < 3600) return `${Math.floor(s / 60)} min ago`;
    if (s < 2 * 86400) return `${Math.floor(s / 3600)} h ago`;
    return `${Math.floor(s / 86400)} d ago`;
  };

  const tell = () => {
    for (const time of document.querySelectorAll("time[datetime]")) {
      const text = ago(Date.parse(time.dateTime));
      if (time.textContent !== text) time.textContent = text;
    }
  };

  // Somebody who is at work in a part of the page keeps it.
  const inUse = (part) => {
    const active = document.activeElement;
    const selection = document.getSelection();
    return (active && part.contains(active) && /^(INPUT|SELECT|TEXTAREA|BUTTON|SUMMARY)$/.test(active.tagName)) ||
      [...part.querySelectorAll("input[type=file]")].some((input) => input.files.length > 0) ||
      (selection && !selection.isCollapsed && part.contains(selection.anchorNode));
  };

  const update = async () => {
    const answer = await fetch(location.href, { headers: { Accept: "text/html" }, redirect: "error" });
    if (!answer.ok && answer.status !== 409 && answer.status !== 502) return true;
    const next = new DOMParser().parseFromString(await answer.text(), "text/html");
    for (const part of document.querySelectorAll("[data-part]")) {
      const now = next.getElementById(part.id);
      if (!now || inUse(part) || now.innerHTML === part.innerHTML) continue;
      const focused = part.contains(document.activeElement) ? document.activeElement.getAttribute("href") : null;
      part.replaceChildren(...now.childNodes);
      if (focused) part.querySelector(`[href="${CSS.escape(focused)}"]`)?.focus();
    }
    tell();
    return next.body.hasAttribute("data-live");
  };

  const live = async () => {
    let goOn = true;
    if (document.visibilityState === "visible") {
      try {
        goOn = await update();
      } catch {
        // The console is away for a moment: it is asked again.
      }
    }
    if (goOn) setTimeout(live, every);
  };

  // A double click sends a form once.
  document.addEventListener("submit", (event) => {
    if (event.target.method !== "post") return;
    if (event.target.dataset.sent) event.preventDefault();
    event.target.dataset.sent = "yes";
  });
  addEventListener("pageshow", () => {
    for (const form of document.forms) delete form.dataset.sent;
  });

  // / goes to the filters.
  document.addEventListener("keydown", (event) => {
    if (event.key !== "/" || event.ctrlKey || event.metaKey || event.altKey ||
      /^(INPUT|SELECT|TEXTAREA)$/.test(document.activeElement.tagName)) return;
    const details = document.querySelector(".filters details");
    if (!details) return;
    event.preventDefault();
    details.open = true;
    details.querySelector("input").focus();
  });

  setInterval(tell, 1000);
  if (document.body.hasAttribute("data-live")) setTimeout(live, every);
})();
