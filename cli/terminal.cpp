// SPDX-License-Identifier: Apache-2.0
// Writing to the standard streams.
#include "cli/terminal.hpp"

#include <unistd.h>

#include <cerrno>
#include <cstdlib>

#include "cli/text.hpp"

namespace echotp {
namespace {

std::string variable(const char* name) {
  const char* value = std::getenv(name);
  return value ? value : "";
}

// One write, so that lines of several processes do not mix. False if it failed.
bool write_all(int stream, std::string_view text) {
  while (!text.empty()) {
    const ssize_t written = ::write(stream, text.data(), text.size());
    if (written < 0) {
      if (errno == EINTR) continue;
      return errno == EPIPE;  // whoever reads has seen enough: no failure of ours
    }
    text.remove_prefix(static_cast<std::size_t>(written));
  }
  return true;
}

}  // namespace

bool wants_colour(ColourChoice choice, const StreamFacts& facts) {
  if (choice != ColourChoice::kAuto) return choice == ColourChoice::kAlways;
  if (!facts.no_colour.empty()) return false;
  if (!facts.force_colour.empty() && facts.force_colour != "0") return true;
  return facts.is_terminal && !facts.term.empty() && facts.term != "dumb";
}

Terminal::Terminal() {
  for (const char* name : {"LC_ALL", "LC_CTYPE", "LANG"}) {
    const std::string locale = variable(name);
    if (locale.empty()) continue;
    unicode_ = locale.find("UTF-8") != std::string::npos || locale.find("utf8") != std::string::npos;
    break;
  }
  stderr_is_terminal_ = ::isatty(STDERR_FILENO) == 1;
  set_colour(ColourChoice::kAuto);
}

void Terminal::set_colour(ColourChoice choice) {
  colour_stderr_ = wants_colour(
      choice, {stderr_is_terminal_, variable("NO_COLOR"), variable("CLICOLOR_FORCE"), variable("TERM")});
}

void Terminal::out(std::string_view text) {
  clear_progress();
  if (!write_all(STDOUT_FILENO, text)) out_failed_ = true;
}

void Terminal::block(std::string_view text) {
  if (!quiet_) pass_on(text);
}

void Terminal::pass_on(std::string_view text) {
  clear_progress();
  write_all(STDERR_FILENO, text);
}

void Terminal::note(std::string_view text) {
  if (!quiet_) line("", "", text);
}

void Terminal::warning(std::string_view text) {
  line("warning: ", "\033[33m", text);
}

void Terminal::error(std::string_view text) {
  line("", "\033[31m", text);
}

void Terminal::progress(std::string_view text) {
  if (quiet_ || !stderr_is_terminal_) return;
  write_all(STDERR_FILENO, "\r\033[K" + plain(text, 100));
  progress_shown_ = true;
}

void Terminal::line(std::string_view word, std::string_view colour, std::string_view text) {
  clear_progress();
  // A line holds one line: whatever file or job the words come from.
  std::string shown = std::string(word) + plain(text, 4000);
  if (colour_stderr_ && !colour.empty()) shown = std::string(colour) + shown + "\033[0m";
  write_all(STDERR_FILENO, "echo-tp: " + shown + "\n");
}

void Terminal::clear_progress() {
  if (!progress_shown_) return;
  write_all(STDERR_FILENO, "\r\033[K");
  progress_shown_ = false;
}

}  // namespace echotp
