// SPDX-License-Identifier: Apache-2.0
// TERMINAL: the only place that writes to the two standard streams. Results go to stdout; notes, warnings and
// errors to stderr, each line starting with "echo-tp: ". Colour and progress appear only where a person
// looks.
#pragma once

#include <string>
#include <string_view>

namespace echotp {

enum class ColourChoice { kAuto, kAlways, kNever };

/// What the surroundings say about one stream.
struct StreamFacts {
  bool is_terminal = false;
  std::string no_colour;     // NO_COLOR
  std::string force_colour;  // CLICOLOR_FORCE
  std::string term;          // TERM
};

/// Whether to colour a stream: the choice first, then NO_COLOR, CLICOLOR_FORCE, TERM=dumb and the kind of
/// stream.
bool wants_colour(ColourChoice choice, const StreamFacts& facts);

class Terminal {
 public:
  Terminal();

  void set_quiet(bool quiet) { quiet_ = quiet; }
  bool quiet() const { return quiet_; }
  void set_colour(ColourChoice choice);

  /// True if bars may use block characters: the locale says UTF-8.
  bool unicode() const { return unicode_; }

  /// The result asked for, as it stands.
  void out(std::string_view text);
  /// True once a write to stdout failed other than by a closed pipe (disk full).
  bool out_failed() const { return out_failed_; }

  /// A table or text of several lines on stderr; nothing when quiet.
  void block(std::string_view text);
  /// A piece of another program's output, as it stands, on stderr; also when quiet.
  void pass_on(std::string_view text);
  /// One line of news; nothing when quiet.
  void note(std::string_view line);
  /// One line that should be read: shown even when quiet.
  void warning(std::string_view line);
  /// One line about why the command failed.
  void error(std::string_view line);

  /// A line that the next one replaces; only on a terminal and when not quiet.
  void progress(std::string_view line);

 private:
  void line(std::string_view word, std::string_view colour, std::string_view text);
  void clear_progress();

  bool quiet_ = false;
  bool unicode_ = false;
  bool colour_stderr_ = false;
  bool stderr_is_terminal_ = false;
  bool progress_shown_ = false;
  bool out_failed_ = false;
};

}  // namespace echotp
