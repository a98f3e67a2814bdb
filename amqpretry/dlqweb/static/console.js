// Everything works without this script. With it pages update by themselves, times stay true, and
// keys do what the help says.
"use strict";
(() => {
  const every = 3000, longest = 30000, timeout = 10000, silence = 8000;
  const root = document.documentElement;
  const $ = (id) => document.getElementById(id);
  const store = (key, value) => {
    try {
      if (value === undefined) return localStorage.getItem("dlqweb-" + key);
      if (value) localStorage.setItem("dlqweb-" + key, value); else localStorage.removeItem("dlqweb-" + key);
    } catch { /* storage is off: the choice lasts as long as the page */ }
    return null;
  };

  // ---- times ----

  const two = (n) => String(n).padStart(2, "0");
  const day = (t) => `${t.getFullYear()}-${two(t.getMonth() + 1)}-${two(t.getDate())}`;
  const clock = (t) => `${two(t.getHours())}:${two(t.getMinutes())}:${two(t.getSeconds())}`;
  const zone = Intl.DateTimeFormat().resolvedOptions().timeZone || "local time";
  const texts = {
    ago: (at, due) => {
      const since = (Date.now() - at) / 1000, s = Math.floor(Math.abs(since));
      if (s < 1 || (since < 0 && s < 60 && !due)) return "now"; // else clocks differ
      const text = s < 60 ? `${s} s` : s < 3600 ? `${Math.floor(s / 60)} min`
        : s < 2 * 86400 ? `${Math.floor(s / 3600)} h` : `${Math.floor(s / 86400)} d`;
      return since < 0 ? `in ${text}` : `${text} ago`;
    },
    local: (at) => {
      const t = new Date(at);
      return day(t) === day(new Date()) ? clock(t) : `${day(t)} ${clock(t)}`;
    },
    UTC: (at) => new Date(at).toISOString().slice(0, 19).replace("T", " "),
  };
  let mode = texts[store("times")] ? store("times") : "ago";

  const tell = (where) => {
    for (const time of where.querySelectorAll("time[datetime]")) {
      const at = Date.parse(time.dateTime);
      const text = texts[mode](at, time.className === "due");
      if (time.textContent !== text) time.textContent = text;
      const title = `${texts.UTC(at)} UTC\n${day(new Date(at))} ${clock(new Date(at))} ${zone}`;
      if (time.title !== title) time.title = title;
    }
  };

  // A button that goes through choices, of which the first is not kept.
  const choice = (id, names, now, use) => {
    const button = $(id);
    const show = () => {
      button.textContent = names[now];
      button.setAttribute("aria-label", `${button.title}: ${names[now]}`);
    };
    show();
    button.addEventListener("click", () => {
      const keys = Object.keys(names);
      now = keys[(keys.indexOf(now) + 1) % keys.length];
      store(id, now === keys[0] ? "" : now);
      show();
      use(now);
    });
  };
  choice("times", { ago: "Ago", local: "Local", UTC: "UTC" }, mode, (now) => {
    mode = now;
    tell(document);
  });
  choice("theme", { system: "Auto", light: "Light", dark: "Dark" }, root.dataset.theme || "system", (now) => {
    if (now === "system") delete root.dataset.theme; else root.dataset.theme = now;
  });

  // ---- updates in place ----

  const keyOf = (n) => n.nodeType !== 1 ? "" : n.getAttribute("id") || n.getAttribute("data-key") || n.getAttribute("href") || n.getAttribute("name") || "";
  // Without keys, elements of different classes differ: a new warning is inserted, and the paragraph behind it stays.
  const alike = (a, b) => a.nodeType === b.nodeType && a.nodeName === b.nodeName && keyOf(a) === keyOf(b) &&
    (a.nodeType !== 1 || keyOf(a) || a.classList[0] === b.classList[0]);
  const selected = (node) => {
    const selection = document.getSelection();
    return selection && !selection.isCollapsed && selection.containsNode(node, true);
  };
  const used = (e) => e === document.activeElement || (e.type === "file" ? e.files.length > 0 :
    e.type === "checkbox" || e.type === "radio" ? e.checked !== e.defaultChecked :
    e.nodeName === "SELECT" ? [...e.options].some((o) => o.selected !== o.defaultSelected) : e.value !== e.defaultValue);

  // morph makes an element the same as another one, and keeps what somebody does with it: focus,
  // selection, scroll positions, open details, and inputs with something in them.
  const morph = (now, next) => {
    if (now.nodeType !== 1) {
      if (now.nodeValue !== next.nodeValue && !selected(now)) now.nodeValue = next.nodeValue;
      return;
    }
    if (now.matches("input, select, textarea") && used(now)) return;
    for (const { name } of [...now.attributes]) {
      if (!next.hasAttribute(name) && !(name === "open" && now.matches("details, dialog"))) now.removeAttribute(name);
    }
    for (const { name, value } of next.attributes) {
      if (now.getAttribute(name) !== value && !(name === "open" && now.matches("details, dialog"))) now.setAttribute(name, value);
    }
    if (!now.isEqualNode(next)) children(now, next);
  };

  const children = (now, next) => {
    const wanted = new Set([...next.children].map(keyOf));
    for (const child of [...now.children]) if (keyOf(child) && !wanted.has(keyOf(child))) child.remove();
    const keyed = {};
    for (const child of now.children) if (keyOf(child)) (keyed[" " + keyOf(child)] ||= []).push(child);
    const coming = [...next.childNodes];
    let at = now.firstChild;
    coming.forEach((child, i) => {
      let match = keyOf(child) ? keyed[" " + keyOf(child)]?.shift() : at;
      if (match && match === at && !alike(match, child) && !keyOf(child)) {
        // If there are more nodes than there should be, those before the next one like it are gone.
        let left = 0;
        for (let n = at; n; n = n.nextSibling) left++;
        let like = at;
        while (like && !alike(like, child)) like = like.nextSibling;
        if (like && left > coming.length - i) {
          while (at !== like) {
            const gone = at;
            at = at.nextSibling;
            if (!keyOf(gone)) gone.remove();
          }
          match = like;
        }
      }
      if (!match || !alike(match, child)) {
        now.insertBefore(document.importNode(child, true), at);
        return;
      }
      if (match === at) at = at.nextSibling;
      else if (now.moveBefore) now.moveBefore(match, at);
      else now.insertBefore(match, at);
      morph(match, child);
    });
    while (at) {
      const gone = at;
      at = at.nextSibling;
      gone.remove();
    }
  };

  // ---- what is said to a screen reader: changes of state, and progress every 10 s ----

  let said = { state: null, progress: "", at: Date.now() };
  const say = (text) => { $("announce").textContent = text; };
  const summary = () => {
    const part = document.querySelector("main [data-part]");
    if (!part) return { state: "", progress: "" };
    const { state, progress } = part.dataset;
    const bar = state === undefined && part.querySelector("progress");
    return { state: state ?? part.querySelector(".state")?.textContent ?? "",
      progress: progress ?? (bar ? `${bar.value} of ${bar.max}` : "") };
  };
  const announce = () => {
    const now = summary();
    const changed = now.state !== said.state, later = now.progress !== said.progress && Date.now() - said.at >= 10000;
    if (!changed && !later) return;
    say([now.state, now.progress].filter(Boolean).join(", ") || "Updated");
    said = { ...now, at: Date.now() };
  };

  // ---- asking again ----

  let good = Date.now(), shown = good, failure = null, pause = every, timer = 0, asking = false;
  const words = {
    401: "You are signed out. Reload the page to sign in.",
    403: "You may no longer see this page.",
    404: "This page no longer exists.",
    500: "The console has an error. Its log says why.",
    503: "The console is closed, or starts again.",
  };
  const problem = (text) => Object.assign(new Error(text), { told: text });

  const stale = () => {
    const quiet = Date.now() - Math.max(good, shown);
    const shows = failure && (failure.told || quiet > silence);
    const banner = $("stale");
    if (shows) {
      const why = failure.told || `No answer from the console for ${Math.round(quiet / 1000)} s.`;
      banner.firstElementChild.textContent = `${why} The numbers below are from ${clock(new Date(good))}.`;
    }
    if (banner.hidden !== !shows) {
      banner.hidden = !shows;
      document.body.classList.toggle("is-stale", Boolean(shows));
      say(shows ? banner.firstElementChild.textContent : "The console answers again.");
    }
  };

  const update = async () => {
    const answer = await fetch(location.href, { headers: { Accept: "text/html", "X-Requested-With": "live" }, redirect: "manual",
      cache: "no-store", signal: AbortSignal.timeout(timeout) });
    if (answer.type === "opaqueredirect") throw problem(words[401]);
    if (words[answer.status]) throw problem(words[answer.status]);
    if (answer.status === 502 || answer.status === 504) throw new Error("a proxy answers");
    if (!answer.ok) throw problem(`The console answers with the status ${answer.status}.`);
    const next = new DOMParser().parseFromString(await answer.text(), "text/html");
    if (!next.querySelector("script[src*='static/console.js']")) {
      throw problem("Something else than the console answers. Reload the page to see it.");
    }
    const style = (d) => d.querySelector("link[rel=stylesheet]")?.getAttribute("href");
    if (style(next) !== style(document) && ![...document.querySelectorAll("input, select, textarea")].some(used)) location.reload();
    tell(next);
    const focused = document.activeElement;
    // A page that waited for its queue, or whose queue was read again, is another one now. Else its tables stay as they are.
    const of = (d) => [...d.querySelectorAll("main [data-part], main [data-refresh]")].map((e) => e.id || e.getAttribute("href")).join();
    const parts = of(next) === of(document) ? "main [data-part], .top [data-part]" : "main, .top [data-part]";
    for (const part of document.querySelectorAll(parts)) {
      const same = next.getElementById(part.id);
      if (same) morph(part, same);
    }
    if (focused !== document.activeElement) (focused.isConnected ? focused : $("main")).focus({ preventScroll: true });
    if (document.title !== next.title) document.title = next.title;
    return next.body.hasAttribute("data-live");
  };

  const ask = async () => {
    clearTimeout(timer);
    if (asking) return;
    asking = true;
    let goOn = true;
    if (document.visibilityState === "visible") {
      try {
        goOn = await update();
        good = Date.now();
        failure = null;
        pause = every;
        stale();
        announce();
      } catch (error) {
        failure = error;
        pause = Math.min(longest, pause * 1.5);
        stale();
      }
    }
    asking = false;
    if (goOn) timer = setTimeout(ask, pause);
  };

  setInterval(() => {
    tell(document);
    if (failure) stale();
  }, 1000);
  tell(document);
  if (document.body.hasAttribute("data-live")) {
    said = { ...summary(), at: Date.now() };
    timer = setTimeout(ask, every);
    document.addEventListener("visibilitychange", () => {
      shown = Date.now();
      if (document.visibilityState === "visible" && shown - good > every) ask();
    });
    $("stale").querySelector("button").addEventListener("click", ask);
  }

  // ---- forms and copies ----

  // A double click sends a form once.
  const sent = new WeakSet();
  document.addEventListener("submit", (event) => {
    if (event.target.method !== "post") return;
    if (sent.has(event.target)) event.preventDefault();
    sent.add(event.target);
  });
  addEventListener("pageshow", () => { for (const form of document.forms) sent.delete(form); });

  // Without https the clipboard is reached through a selection only.
  const copy = async (text) => {
    if (navigator.clipboard) return navigator.clipboard.writeText(text);
    const field = document.body.appendChild(document.createElement("textarea"));
    field.value = text;
    field.select();
    const done = document.execCommand("copy");
    field.remove();
    if (!done) throw new Error("copy");
  };
  document.addEventListener("click", async (event) => {
    const button = event.target.closest("button[data-copy]");
    if (!button) return;
    const from = button.dataset.copyFrom && $(button.dataset.copyFrom);
    const label = button.dataset.label ||= button.textContent;
    try {
      await copy(from ? from.textContent : button.dataset.copy);
      button.textContent = "Copied";
      say("Copied");
    } catch {
      button.textContent = "Cannot copy";
    }
    button.focus();
    setTimeout(() => { button.textContent = label; }, 1500);
  });

  // ---- keys ----

  const help = $("help"), useKeys = $("use-keys");
  const open = () => { if (!help.open) help.showModal(); };
  $("keys").addEventListener("click", open);
  useKeys.checked = store("keys") !== "off";
  useKeys.addEventListener("change", () => store("keys", useKeys.checked ? "" : "off"));
  help.addEventListener("click", (event) => { if (event.target === help) help.close(); });

  const follow = (selector) => document.querySelector(selector)?.click();
  const row = (step) => {
    const links = [...document.querySelectorAll("main tbody tr")].map((r) => r.querySelector("a[href]")).filter(Boolean);
    const now = links.findIndex((link) => link.closest("tr").contains(document.activeElement));
    links[now < 0 ? (step > 0 ? 0 : links.length - 1) : Math.max(0, Math.min(links.length - 1, now + step))]?.focus();
  };
  const search = () => {
    const field = document.querySelector("[data-search], .filters input:not([type=hidden])");
    if (!field) return;
    const details = field.closest("details");
    if (details) details.open = true;
    field.focus();
    field.select();
  };
  const keys = {
    "/": search, "?": open, j: () => row(1), k: () => row(-1), n: () => follow("[rel=next]"), p: () => follow("[rel=prev]"),
    r: () => follow("[data-refresh]"), "g q": () => follow("[data-go=q]"), "g r": () => follow("[data-go=r]"),
  };
  let before = "", then = 0;
  document.addEventListener("keydown", (event) => {
    const field = event.target.closest?.("input:not([type=checkbox]):not([type=radio]), select, textarea");
    if (event.key === "Escape" && field) field.blur();
    if (!useKeys.checked || field || help.open || event.ctrlKey || event.metaKey || event.altKey || event.isComposing) return;
    const chord = keys[`${before} ${event.key}`];
    const act = chord && Date.now() - then < 1500 ? chord : keys[event.key];
    before = event.key;
    then = Date.now();
    if (!act) return;
    event.preventDefault();
    act();
  });
})();
