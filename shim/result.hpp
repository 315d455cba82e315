// SPDX-License-Identifier: Apache-2.0
// Result<T>: a value or an Error. No exception crosses a file.
#pragma once

#include <string>
#include <utility>
#include <variant>

namespace echotp {

enum class ErrorCode {
  kBadInput,      // the user's document, argument or file is wrong
  kNotFound,      // a file or program is missing
  kInsufficient,  // the data can't carry an answer
  kSystem,        // the operating system, CUDA or NCCL refused
};

/// What went wrong, where (file, JSON pointer or argument) and what was expected. One line when printed.
struct Error {
  ErrorCode code = ErrorCode::kSystem;
  std::string what;   // "unknown key 'min_byte'; did you mean 'min_bytes'?"
  std::string where;  // "policy.json: /rules/0"; may be empty
  std::string text() const { return where.empty() ? what : where + ": " + what; }
};

template <class T>
class [[nodiscard]] Result {
 public:
  Result(T value) : held_(std::move(value)) {}  // NOLINT: implicit by design
  Result(Error error) : held_(std::move(error)) {}
  explicit operator bool() const { return held_.index() == 0; }
  T& operator*() & { return std::get<0>(held_); }
  const T& operator*() const& { return std::get<0>(held_); }
  T&& operator*() && { return std::get<0>(std::move(held_)); }
  T* operator->() { return &std::get<0>(held_); }
  const T* operator->() const { return &std::get<0>(held_); }
  const Error& error() const { return std::get<1>(held_); }

 private:
  std::variant<T, Error> held_;
};

struct Unit {};
using Status = Result<Unit>;

}  // namespace echotp
