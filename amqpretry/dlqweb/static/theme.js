// Before the page is drawn: the theme that somebody chose, and that there are scripts.
"use strict";
document.documentElement.dataset.js = "";
try {
  const theme = localStorage.getItem("dlqweb-theme");
  if (theme) document.documentElement.dataset.theme = theme;
} catch { /* storage is off: the theme is the system's */ }
