// SPDX-License-Identifier: Apache-2.0
// Finding numbers in output.
#include "cli/metric.hpp"

#include <algorithm>
#include <cctype>
#include <cstdlib>

namespace echotp {
namespace {

// std::regex recurses once a character: a longer line could end our stack. Progress bars and dumps are such
// lines.
constexpr std::size_t kLongestLine = 4096;

bool is_word(char c) {
  return std::isalnum(static_cast<unsigned char>(c)) || c == '_';
}

// Letters or digits that stand for themselves before the first group.
bool names_something(std::string_view expression) {
  for (std::size_t i = 0; i < expression.size() && expression[i] != '('; ++i) {
    if (expression[i] == '\\') {
      ++i;
    } else if (expression[i] == '[') {
      while (i + 1 < expression.size() && expression[i] != ']') ++i;
    } else if (is_word(expression[i])) {
      return true;
    }
  }
  return false;
}

std::string leading_word(std::string_view text) {
  const auto end = std::find_if_not(text.begin(), text.end(), is_word);
  return end == text.begin() ? "metric" : std::string(text.begin(), end);
}

}  // namespace

Result<Metric> parse_metric(const std::string& argument, const std::string& option) {
  Metric out{"", argument, {}};
  const std::size_t equals = argument.find('=');
  const bool word_first =
      equals != std::string::npos && equals > 0 &&
      std::all_of(argument.begin(), argument.begin() + static_cast<std::ptrdiff_t>(equals), is_word);
  if (word_first && names_something(std::string_view(argument).substr(equals + 1))) {
    out.name = argument.substr(0, equals);
    out.expression = argument.substr(equals + 1);
  } else {
    out.name = leading_word(argument);
  }
  try {
    out.compiled = std::regex(out.expression, std::regex::ECMAScript | std::regex::optimize);
  } catch (const std::regex_error& error) {
    return Error{ErrorCode::kBadInput, "'" + out.expression + "' is no regular expression: " + error.what(),
                 option};
  }
  if (out.compiled.mark_count() == 0)
    return Error{ErrorCode::kBadInput,
                 "'" + out.expression + "' has no group; put the number in parentheses: 'loss=([0-9.]+)'",
                 option};
  return out;
}

MetricWatch::MetricWatch(const std::vector<Metric>& metrics) : metrics_(metrics) {
  for (Stream& stream : streams_) stream.last.resize(metrics.size());
}

void MetricWatch::add(JobStream which, std::string_view piece) {
  Stream& stream = streams_[which == JobStream::kStdout ? 0 : 1];
  for (const char c : piece) {
    // A progress bar ends its lines with a carriage return.
    if (c == '\n' || c == '\r') {
      read_line(stream);
    } else if (stream.line.size() < kLongestLine) {
      stream.line += c;
    }
  }
}

void MetricWatch::finish() {
  for (Stream& stream : streams_) read_line(stream);
}

void MetricWatch::read_line(Stream& stream) {
  if (stream.line.empty()) return;
  for (std::size_t i = 0; i < metrics_.size(); ++i) {
    try {
      for (std::sregex_iterator at(stream.line.begin(), stream.line.end(), metrics_[i].compiled), end;
           at != end; ++at) {
        const std::string text = (*at)[1].str();
        char* rest = nullptr;
        const double value = std::strtod(text.c_str(), &rest);
        if (rest != text.c_str() && *rest == '\0') stream.last[i] = value;
      }
    } catch (const std::regex_error&) {
      // Too complex for this line: it counts as no match.
    }
  }
  stream.line.clear();
}

std::vector<std::optional<double>> MetricWatch::values() const {
  std::vector<std::optional<double>> out = streams_[0].last;
  for (std::size_t i = 0; i < out.size(); ++i) {
    if (!out[i]) out[i] = streams_[1].last[i];
  }
  return out;
}

}  // namespace echotp
