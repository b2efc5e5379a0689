// Light or dark: as the system says, until someone chooses.

const KEY = "vime-otel-theme";

export function connectTheme() {
  apply(stored());
  document.getElementById("theme")?.addEventListener("click", toggleTheme);
}

export function toggleTheme() {
  const dark = stored() ? stored() === "dark" : window.matchMedia("(prefers-color-scheme: dark)").matches;
  const chosen = dark ? "light" : "dark";
  try {
    window.localStorage.setItem(KEY, chosen);
  } catch {
    // A browser that keeps nothing still shows it now.
  }
  apply(chosen);
  document.dispatchEvent(new Event("themechange"));
}

function stored() {
  try {
    return window.localStorage.getItem(KEY) ?? "";
  } catch {
    return "";
  }
}

function apply(theme) {
  if (theme === "light" || theme === "dark") {
    document.documentElement.style.colorScheme = theme;
  }
}
