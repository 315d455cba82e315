// SPDX-License-Identifier: Apache-2.0
// Numbers, tables and words.
#include "cli/text.hpp"

#include <doctest/doctest.h>

#include <cstdlib>

#include "cli/terminal.hpp"

using namespace echotp;

TEST_CASE("times have three digits and the unit that fits") {
  CHECK(show_time(0) == "0 us");
  CHECK(show_time(8.349) == "8.35 us");
  CHECK(show_time(999.4) == "999 us");
  CHECK(show_time(999.6) == "1 ms");
  CHECK(show_time(-4640) == "-4.64 ms");
  CHECK(show_time(1.2e6) == "1.2 s");
  CHECK(show_time(std::optional<double>()) == "-");
}

TEST_CASE("unknown is a dash, never 0") {
  CHECK(show_bytes(-1) == "-");
  CHECK(show_bytes(0) == "0 B");
  CHECK(show_percent(std::nullopt) == "-");
}

TEST_CASE("sizes") {
  CHECK(show_bytes(1023) == "1023 B");
  CHECK(show_bytes(64 << 20) == "64 MiB");
  CHECK(show_bytes((1 << 20) + (1 << 19)) == "1.5 MiB");
  CHECK(show_bytes(8192000000) == "7.63 GiB");
  CHECK(show_bytes(1047527424) == "999 MiB");
  CHECK(show_bytes(1073000000) == "1023 MiB");
}

TEST_CASE("counts are grouped by thousands") {
  CHECK(show_count(0) == "0");
  CHECK(show_count(999) == "999");
  CHECK(show_count(12480) == "12 480");
  CHECK(show_count(-1234567) == "-1 234 567");
}

TEST_CASE("names out of a job can't steer the terminal") {
  CHECK(plain("a\033[2Jb\nc") == "a?[2Jb?c");
  CHECK(plain("\xC2\x9B"
              "31m") == "?31m");  // CSI as C1 control
  CHECK(plain("gr\xC3\xBC\xC3\x9F") == "gr\xC3\xBC\xC3\x9F");
  CHECK(plain("\xFF\xC3") == "??");
  CHECK(plain("\xE0\x80\x80") == "???");  // overlong
  CHECK(plain("abcdef", 3) == "abc...");
}

TEST_CASE("a shell reads a quoted line as the words that it was made of") {
  const std::vector<std::string> words = {"plain", "",     "two words", "it's",       "$HOME `id`",
                                          "*",     "a\nb", "~",         "x=([0-9.]+)"};
  std::string command = "printf '%s|' " + shell_line(words);
  std::FILE* pipe = ::popen(command.c_str(), "r");
  REQUIRE(pipe != nullptr);
  std::string got;
  for (int c; (c = std::fgetc(pipe)) != EOF;) got += static_cast<char>(c);
  ::pclose(pipe);
  std::string wanted;
  for (const std::string& word : words) wanted += word + "|";
  CHECK(got == wanted);
}

TEST_CASE("bars") {
  CHECK(bar(0.5, 8, false) == "####");
  CHECK(bar(2, 4, false) == "####");
  CHECK(bar(-1, 4, false) == "");
  CHECK(bar(0.0 / 0.0, 4, false) == "");
  CHECK(bar(0.5, 3, true) == "\u2588\u258C");
}

TEST_CASE("columns align by characters, not by bytes") {
  Table table({"name", ">n"});
  table.row({"\u00FC", "1"});
  table.row({"longer", "1234"});
  CHECK(table.text(0) == "name       n\n\u00FC          1\nlonger  1234\n");
}

TEST_CASE("colour: the choice, then NO_COLOR, then force, then the stream") {
  const StreamFacts terminal{true, "", "", "xterm"};
  CHECK(wants_colour(ColourChoice::kAuto, terminal));
  CHECK_FALSE(wants_colour(ColourChoice::kNever, terminal));
  CHECK_FALSE(wants_colour(ColourChoice::kAuto, {true, "1", "1", "xterm"}));
  CHECK(wants_colour(ColourChoice::kAlways, {false, "1", "", "dumb"}));
  CHECK_FALSE(wants_colour(ColourChoice::kAuto, {true, "", "", "dumb"}));
  CHECK_FALSE(wants_colour(ColourChoice::kAuto, {false, "", "", "xterm"}));
  CHECK(wants_colour(ColourChoice::kAuto, {false, "", "1", ""}));
  CHECK_FALSE(wants_colour(ColourChoice::kAuto, {false, "", "0", "xterm"}));
}
