// SPDX-License-Identifier: Apache-2.0
// TEXT: numbers, tables and bars as people read them, and words as a shell reads them. Pure.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

namespace echotp {

/// Three significant digits with a unit that fits: "8.35 us", "4.6 ms", "1.2 s". `microseconds` may be
/// negative.
std::string show_time(double microseconds);

/// The same; "-" for what is not known.
std::string show_time(const std::optional<double>& microseconds);

/// A size as exact as it can be said shortly: "64 MiB", "1.5 MiB", "7.63 GiB"; "-" below 0, which means
/// unknown.
std::string show_bytes(std::int64_t bytes);

/// Thousands in groups: "12 480".
std::string show_count(std::int64_t count);

/// "12.3%"; `share` 1 is 100%. "-" for what is not known.
std::string show_percent(const std::optional<double>& share);

/// Three significant digits: "0.0123", "1.86", "1 234".
std::string show_number(double value);

/// "1.86x".
std::string show_factor(double factor);

/// `text` without control characters and without bytes that are no UTF-8, so that names out of a job can't
/// steer the terminal; cut to `limit` characters with "..." at the end.
std::string plain(std::string_view text, std::size_t limit = 200);

/// `word` so that a POSIX shell reads it as one word.
std::string shell_word(std::string_view word);

/// All words, quoted where needed, with spaces between.
std::string shell_line(const std::vector<std::string>& words);

/// A bar of `width` cells that `share` (0 to 1) of is filled; blocks when `unicode`, else '#'.
std::string bar(double share, int width, bool unicode);

/// Rows of cells in aligned columns, two spaces between them.
class Table {
 public:
  /// Column titles; a title that starts with '>' aligns its column to the right.
  explicit Table(std::vector<std::string> titles);
  void row(std::vector<std::string> cells);
  bool empty() const { return rows_.empty(); }
  /// Lines, each ended by a newline and indented by `indent` spaces.
  std::string text(int indent = 2) const;

 private:
  std::vector<std::string> titles_;
  std::vector<bool> right_;
  std::vector<std::vector<std::string>> rows_;
};

}  // namespace echotp
