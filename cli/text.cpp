// SPDX-License-Identifier: Apache-2.0
// Formatting of numbers, tables and words.
#include "cli/text.hpp"

#include <algorithm>
#include <array>
#include <cmath>
#include <cstdio>

namespace echotp {
namespace {

std::string significant(double value) {
  if (!std::isfinite(value)) return std::isnan(value) ? "nan" : value > 0 ? "inf" : "-inf";
  const double magnitude = std::fabs(value);
  // From 999.5 on three digits need no fraction; the thousands are grouped.
  if (magnitude >= 999.5 && magnitude < 1e15) return show_count(std::llround(value));
  std::array<char, 32> out;
  if (magnitude != 0 && (magnitude < 1e-4 || magnitude >= 1e15)) {
    std::snprintf(out.data(), out.size(), "%.2e", value);
  } else {
    std::snprintf(out.data(), out.size(), "%.3g", value);
  }
  return out.data();
}

// Columns of a UTF-8 text, one a code point: enough for what we print.
std::size_t columns(std::string_view text) {
  return static_cast<std::size_t>(std::count_if(
      text.begin(), text.end(), [](char c) { return (static_cast<unsigned char>(c) & 0xC0) != 0x80; }));
}

// Length of the valid UTF-8 sequence at `at`, 0 if there is none.
std::size_t sequence_length(std::string_view text, std::size_t at) {
  const auto byte = [&](std::size_t i) { return static_cast<unsigned char>(text[i]); };
  const unsigned char first = byte(at);
  if (first < 0x80) return 1;
  const std::size_t length = first >= 0xC2 && first <= 0xDF   ? 2
                             : first >= 0xE0 && first <= 0xEF ? 3
                             : first >= 0xF0 && first <= 0xF4 ? 4
                                                              : 0;
  if (length == 0 || at + length > text.size()) return 0;
  for (std::size_t i = 1; i < length; ++i) {
    if ((byte(at + i) & 0xC0) != 0x80) return 0;
  }
  const unsigned char second = byte(at + 1);
  if ((first == 0xE0 && second < 0xA0) || (first == 0xED && second > 0x9F) ||
      (first == 0xF0 && second < 0x90) || (first == 0xF4 && second > 0x8F))
    return 0;
  return length;
}

}  // namespace

std::string show_time(double microseconds) {
  const double magnitude = std::fabs(microseconds);
  if (magnitude >= 999'500) return significant(microseconds / 1e6) + " s";
  if (magnitude >= 999.5) return significant(microseconds / 1e3) + " ms";
  return significant(microseconds) + " us";
}

std::string show_time(const std::optional<double>& microseconds) {
  return microseconds ? show_time(*microseconds) : "-";
}

std::string show_bytes(std::int64_t bytes) {
  if (bytes < 0) return "-";
  constexpr std::array<const char*, 5> kUnits = {"B", "KiB", "MiB", "GiB", "TiB"};
  double value = static_cast<double>(bytes);
  std::size_t unit = 0;
  while (value >= 1024 && unit + 1 < kUnits.size()) {
    value /= 1024;
    ++unit;
  }
  if (unit == 0) return std::to_string(bytes) + " B";
  std::array<char, 32> out;
  std::snprintf(out.data(), out.size(), value == std::floor(value) ? "%.0f %s" : "%.3g %s", value,
                kUnits[unit]);
  if (value >= 999.5 && value != std::floor(value))
    std::snprintf(out.data(), out.size(), "%.0f %s", value, kUnits[unit]);
  return out.data();
}

std::string show_count(std::int64_t count) {
  std::string digits = std::to_string(count);
  const std::size_t start = digits[0] == '-' ? 1 : 0;
  for (std::size_t at = digits.size(); at > start + 3; at -= 3) digits.insert(at - 3, " ");
  return digits;
}

std::string show_percent(const std::optional<double>& share) {
  if (!share) return "-";
  std::array<char, 32> out;
  const double percent = *share * 100;
  std::snprintf(out.data(), out.size(), std::fabs(percent) < 9.995 ? "%.2f%%" : "%.1f%%", percent);
  return out.data();
}

std::string show_number(double value) {
  return significant(value);
}

std::string show_factor(double factor) {
  std::array<char, 32> out;
  std::snprintf(out.data(), out.size(), "%.2fx", factor);
  return out.data();
}

std::string plain(std::string_view text, std::size_t limit) {
  std::string out;
  std::size_t shown = 0;
  for (std::size_t at = 0; at < text.size();) {
    const std::size_t length = sequence_length(text, at);
    const unsigned char first = static_cast<unsigned char>(text[at]);
    // C0, DEL, and C1 (U+0080 to U+009F) can steer a terminal.
    const bool control = first < 0x20 || first == 0x7F ||
                         (first == 0xC2 && length == 2 && static_cast<unsigned char>(text[at + 1]) < 0xA0);
    if (shown == limit) return out + "...";
    if (length == 0 || control) {
      out += '?';
    } else {
      out.append(text.substr(at, length));
    }
    ++shown;
    at += std::max<std::size_t>(length, 1);
  }
  return out;
}

std::string shell_word(std::string_view word) {
  constexpr std::string_view kSafe =
      "abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ0123456789_-./:=@%+,";
  if (!word.empty() && word.find_first_not_of(kSafe) == std::string_view::npos) return std::string(word);
  std::string out = "'";
  for (const char c : word) {
    if (c == '\'') {
      out += "'\\''";
    } else {
      out += c;
    }
  }
  return out + "'";
}

std::string shell_line(const std::vector<std::string>& words) {
  std::string out;
  for (const std::string& word : words) out += (out.empty() ? "" : " ") + shell_word(word);
  return out;
}

std::string bar(double share, int width, bool unicode) {
  const double filled = std::clamp(std::isfinite(share) ? share : 0.0, 0.0, 1.0) * width;
  std::string out;
  if (!unicode) return std::string(static_cast<std::size_t>(std::lround(filled)), '#');
  constexpr std::array<const char*, 8> kEighths = {"",       "\u258F", "\u258E", "\u258D",
                                                   "\u258C", "\u258B", "\u258A", "\u2589"};
  const int eighths = static_cast<int>(std::lround(filled * 8));
  for (int i = 0; i < eighths / 8; ++i) out += "\u2588";
  return out + kEighths[static_cast<std::size_t>(eighths % 8)];
}

Table::Table(std::vector<std::string> titles) {
  for (std::string& title : titles) {
    const bool right = title.starts_with('>');
    right_.push_back(right);
    titles_.push_back(right ? title.substr(1) : std::move(title));
  }
}

void Table::row(std::vector<std::string> cells) {
  cells.resize(titles_.size());
  rows_.push_back(std::move(cells));
}

std::string Table::text(int indent) const {
  std::vector<std::size_t> widths;
  for (const std::string& title : titles_) widths.push_back(columns(title));
  for (const auto& cells : rows_) {
    for (std::size_t i = 0; i < cells.size(); ++i) widths[i] = std::max(widths[i], columns(cells[i]));
  }
  const auto line = [&](const std::vector<std::string>& cells) {
    std::string out(static_cast<std::size_t>(indent), ' ');
    for (std::size_t i = 0; i < cells.size(); ++i) {
      const std::string padding(widths[i] - columns(cells[i]), ' ');
      out += (i == 0 ? "" : "  ") + (right_[i] ? padding + cells[i] : cells[i] + padding);
    }
    out.erase(out.find_last_not_of(' ') + 1);
    return out + "\n";
  };
  std::string out = line(titles_);
  for (const auto& cells : rows_) out += line(cells);
  return out;
}

}  // namespace echotp
