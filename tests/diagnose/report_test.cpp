#include "tautline/diagnose/report.h"

#include <algorithm>
#include <cmath>
#include <cstdlib>
#include <filesystem>
#include <fstream>
#include <gmock/gmock.h>
#include <limits>
#include <sstream>
#include <sys/wait.h>

#include <gtest/gtest.h>

#include "tautline/base/error.h"
#include "tautline/base/random.h"
#include "tautline/diagnose/svg.h"

namespace tautline::diagnose {
namespace {

using testing::ElementsAre;
using testing::HasSubstr;
using testing::Not;

class ReportTest : public testing::Test {
 protected:
  ReportTest() {
    std::string name = (std::filesystem::temp_directory_path() / "tautline-test-XXXXXX").string();
    folder_ = mkdtemp(name.data());
  }
  ~ReportTest() override {
    std::error_code ignored;
    std::filesystem::remove_all(folder_, ignored);
  }
  std::string folder_;
};

int count(const std::string& text, const std::string& part) {
  int n = 0;
  for (size_t at = text.find(part); at != std::string::npos; at = text.find(part, at + part.size()))
    ++n;
  return n;
}

// The end of the tag that begins at `at`: '>' outside of quotes.
size_t tag_end(const std::string& html, size_t at) {
  bool quoted = false;
  for (; at < html.size() && (quoted || html[at] != '>'); ++at) quoted ^= html[at] == '"';
  return at;
}

// Every figure of a page is well-formed: tags nest, quotes close.
void expect_well_formed(const std::string& html) {
  std::vector<std::string> open;
  for (size_t at = html.find('<'); at != std::string::npos; at = html.find('<', at + 1)) {
    const size_t end = tag_end(html, at);
    ASSERT_LT(end, html.size()) << html.substr(at, 80);
    const bool closes = html[at + 1] == '/';
    const size_t begin = at + (closes ? 2 : 1);
    const std::string name = html.substr(begin, html.find_first_of(" />", begin) - begin);
    const bool alone = html[end - 1] == '/' || name == "meta" || name == "link" || name[0] == '!';
    if (closes) {
      ASSERT_FALSE(open.empty()) << name;
      ASSERT_EQ(open.back(), name) << html.substr(at, 80);
      open.pop_back();
    } else if (!alone) {
      open.push_back(name);
    }
    at = end;
  }
  EXPECT_TRUE(open.empty());
}

// A run such as the quickstart's, with figures that look like one.
Report example(int ranks) {
  Random random(3, RandomUse::kSynthetic);
  Report report;
  report.title = "quickstart";
  report.facts = {"model SASRec, 1.3 M parameters", "log synthetic, 50k users",
                  std::to_string(ranks) + " ranks on CPU", "29 Nov 2026, 4 min 12 s"};
  report.headlines = {
      {"NDCG@10, test", "0.0613", "2.6x popularity"}, {"loss", "5.213", "step 2,000"},
      {"tokens/s", "41.2k", "over all ranks"},        {"step", "121 ms", "p95 148 ms"},
      {"exposed comm.", "6.1 %", "of the step"},      {"load imbalance", "1.03", "max over mean"}};
  Curve train{"train", {}, {}, true}, validation{"validation", {}, {}, false};
  Curve ndcg{"tautline", {}, {}, false};
  for (int step = 1; step <= 2000; ++step) {
    train.x.push_back(step);
    train.y.push_back(5.1 + 4.2 * std::exp(-step / 260.0) + 0.12 * random.normal());
  }
  for (int step = 100; step <= 2000; step += 100) {
    validation.x.push_back(step);
    validation.y.push_back(5.25 + 4.0 * std::exp(-step / 250.0));
    ndcg.x.push_back(step);
    ndcg.y.push_back(0.0625 * (1 - std::exp(-step / 420.0)) + 0.0006 * random.normal());
  }
  report.curves = {{"Loss", "nats", "step", {train, validation}, {}, false},
                   {"NDCG@10 over all items",
                    "",
                    "step",
                    {ndcg},
                    {{"popularity", 0.0236}, {"sequential rules", 0.0341}},
                    true}};
  report.phases = {
      "seconds of a step by rank and phase",
      "ms",
      {"input", "lookup", "all_to_all", "forward", "backward", "all_reduce", "optimizer", "idle"},
      {},
      {},
      false};
  report.load = {"tokens a step by rank", "tokens", {"tokens"}, {}, {}, true};
  for (int rank = 0; rank < ranks; ++rank) {
    const auto some = [&](double ms) { return ms * (1 + 0.06 * random.normal()); };
    report.phases.bars.push_back("rank " + std::to_string(rank));
    report.phases.values.push_back(
        {some(1.1), some(4.2), some(9.7), some(31), some(58), some(7.4), some(6.3), some(3.2)});
    report.load.bars.push_back("rank " + std::to_string(rank));
    report.load.values.push_back({some(5120)});
  }
  report.phases_note =
      "Mean over 2,000 steps. Communication that runs beside the backward counts "
      "only where nothing hides it.";
  report.load_note =
      "The dashed line is the mean; the step waits for the longest bar (max over mean "
      "1.03, dealt by length).";
  report.plan.devices = ranks;
  report.plan.tables = {
      {"item",
       {Sharding::kRowWise, 0,
        "12 ms on the busiest rank; table-wise 19 ms, a copy on every rank takes 980 MiB"}},
      {"genre", {Sharding::kTableWise, 2, "0.1 ms on its owner; too few rows to deal"}},
      {"day_of_week", {Sharding::kDataParallel, 0, "7 rows: a copy costs no exchange"}}};
  report.tables = {{"item", {2'000'001, 64, 512e6, 8e6}},
                   {"genre", {1200, 64, 307200, 4800}},
                   {"day_of_week", {8, 64, 2048, 32}}};
  report.results = {{"", ">HR@10", ">NDCG@10", ">NDCG@10 unseen", ">NDCG@10 later"},
                    {{"tautline", "0.1123", "0.0613", "0.0671", "0.0588"},
                     {"sequential rules", "0.0702", "0.0341", "0.0388", "0.0331"},
                     {"popularity", "0.0489", "0.0236", "0.0251", "0.0229"}},
                    0,
                    "Full ranking over all items, 20,000 users of the test split."};
  report.command = "tautline train configs/runs/quickstart.yaml --ranks 4 --set epochs=10";
  report.config = "model: configs/models/sasrec.yaml\nbatch: 512\nepochs: 10\nseed: 1\n";
  report.provenance = {{"version", "tautline 0.1.0, commit 2f4bd85"},
                       {"plan", "5f3c9a1e"},
                       {"data", "synthetic, digest 77ab01"}};
  return report;
}

TEST(Svg, NumbersAsPeopleWriteThem) {
  EXPECT_EQ(short_number(0), "0.0000");
  EXPECT_EQ(short_number(0.05023), "0.0502");
  EXPECT_EQ(short_number(5.2130), "5.213");
  EXPECT_EQ(short_number(123.456), "123.5");
  EXPECT_EQ(short_number(5120), "5120");
  EXPECT_EQ(short_number(41234), "41.23k");
  EXPECT_EQ(short_number(2'000'001), "2M");
  EXPECT_EQ(short_number(-1e-7), "-1.00e-07");
  EXPECT_EQ(short_number(NAN), "nan");
  EXPECT_EQ(even_number(9.819, 124.2), "9.8");
  EXPECT_EQ(even_number(5235.5, 5289), "5,236");
  EXPECT_EQ(even_number(0.5, 4), "0.50");
  EXPECT_EQ(even_number(250'000, 1'250'000), "0.25M");
  EXPECT_EQ(grouped(2'000'001), "2,000,001");
  EXPECT_EQ(grouped(-123), "-123");
  EXPECT_EQ(grouped(1000), "1,000");
  EXPECT_EQ(coordinate(1.0 / 3), "0.33");
  EXPECT_EQ(coordinate(-0.0), "0");
  EXPECT_EQ(coordinate(100), "100");
}

TEST(Svg, AxesAreRound) {
  const auto labels = [](const Axis& axis) {
    std::vector<std::string> out;
    for (double tick : axis.ticks()) out.push_back(axis.label(tick));
    return out;
  };
  EXPECT_THAT(labels(round_axis(0, 0.063, 5)), ElementsAre("0.00", "0.02", "0.04", "0.06", "0.08"));
  EXPECT_THAT(labels(round_axis(4.9, 9.4, 5)), ElementsAre("4", "5", "6", "7", "8", "9", "10"));
  EXPECT_THAT(labels(tight_axis(1, 20'000, 5)), ElementsAre("5k", "10k", "15k", "20k"));
  EXPECT_THAT(labels(tight_axis(0, 2000, 5)), ElementsAre("0", "500", "1000", "1500", "2000"));
  EXPECT_THAT(labels(round_axis(0.1, 0.3, 2)), ElementsAre("0.1", "0.2", "0.3"));
  EXPECT_THAT(labels(round_axis(-1, 1, 2)), ElementsAre("-1", "0", "1"));
  EXPECT_GT(round_axis(3, 3, 5).last, 3);
  EXPECT_GT(round_axis(0, 0, 5).last, round_axis(0, 0, 5).first);
  EXPECT_EQ(round_axis(0, INFINITY, 5).last, 1);
}

TEST(Chart, DrawsOnlyWhatIsThere) {
  EXPECT_EQ(render_chart({}), "");
  EXPECT_EQ(render_chart({"t", "", "step", {{"c", {}, {}, false}}, {{"l", 1}}, false}), "");
  const double nan = NAN;
  EXPECT_EQ(render_chart({"t", "", "step", {{"c", {1}, {nan}, false}}, {}, false}), "");
  const std::string one = render_chart({"t", "", "step", {{"c", {7}, {3}, false}}, {}, false});
  EXPECT_THAT(one, HasSubstr("<circle"));
  const std::string gap =
      render_chart({"t", "", "step", {{"c", {1, 2, 3, 4}, {1, 2, nan, 4}, false}}, {}, false});
  const size_t curve = gap.find("class=\"curve\"");
  EXPECT_EQ(count(gap.substr(curve, gap.find("</path>") - curve), "M"), 2);  // pen up at the gap
  EXPECT_THAT(one + gap, Not(HasSubstr("nan")));
}

TEST(Chart, LongCurvesKeepTheirPeaks) {
  std::vector<double> x, y;
  for (int i = 0; i < 100'000; ++i) {
    x.push_back(i);
    y.push_back(i == 54'321 ? 100 : i % 7 == 0 ? NAN : std::sin(i));
  }
  const std::vector<size_t> points = visible_points(x, y, 500);
  EXPECT_LE(points.size(), 1002u);
  EXPECT_TRUE(std::is_sorted(points.begin(), points.end()));
  EXPECT_THAT(points, testing::Contains(54'321));
  EXPECT_EQ(points.front(), 0u);
  EXPECT_EQ(points.back(), 99'999u);
  EXPECT_EQ(visible_points({1, 2}, {1, 2}, 500).size(), 2u);
}

TEST(Chart, RunningMeanNeitherLagsNorStumbles) {
  const std::vector<double> line = running_mean({0, 1, 2, 3, 4, 5, 6}, 2);
  EXPECT_THAT(line, ElementsAre(1, 1.5, 2, 3, 4, 4.5, 5));
  const std::vector<double> gap = running_mean({3, NAN, 3}, 1);
  EXPECT_TRUE(gap[0] == 3 && std::isnan(gap[1]) && gap[2] == 3);
  EXPECT_TRUE(running_mean({}, 3).empty());
}

TEST(Bars, PhasesStandInTheOrderOfAStep) {
  const StackedBars bars = phase_bars(
      {{{"idle", 1}, {"forward", 4}, {"input", 2}, {"zeta", 3}}, {{"backward", 6}}}, 2000);
  EXPECT_THAT(bars.parts, ElementsAre("input", "forward", "backward", "zeta", "idle"));
  EXPECT_THAT(bars.values, ElementsAre(ElementsAre(1, 2, 0, 1.5, 0.5), ElementsAre(0, 0, 3, 0, 0)));
  EXPECT_THAT(phase_bars({{{"all_to_all", 1}, {"all_reduce", 1}}}, 1).parts,
              ElementsAre("all-to-all", "all-reduce"));
  EXPECT_EQ(render_bars({}), "");
  EXPECT_EQ(render_bars(phase_bars({}, 0)), "");
}

TEST(Bars, CountsHaveNoDecimals) {
  StackedBars bars{"load", "tokens", {"tokens"}, {"rank 0"}, {{575.75}}};
  EXPECT_THAT(render_bars(bars), HasSubstr(">575.8<"));
  bars.whole = true;
  EXPECT_THAT(render_bars(bars), HasSubstr(">576<"));
  bars.values = {{1'234'567}};
  EXPECT_THAT(render_bars(bars), HasSubstr(">1.23M<"));
}

// A metric measured at step 25 first stands below the loss of step 25.
TEST(Chart, ChartsBeginAtOneEdge) {
  Chart chart{"t", "", "step", {{"c", {25, 50}, {1, 2}, false}}, {}, false};
  EXPECT_THAT(render_chart(chart), Not(HasSubstr(">0</text>")));
  chart.x_from = 0;
  EXPECT_THAT(render_chart(chart), HasSubstr(">0</text>"));
}

TEST_F(ReportTest, AnOddChartTakesTheRow) {
  Report report = example(2);
  EXPECT_EQ(count(render(report), "\"card wide"), 0);
  report.curves.push_back(report.curves[1]);
  report.curves.push_back({"without a point", "", "step", {}, {}, false});
  const std::string html = render(report);
  expect_well_formed(html);
  EXPECT_EQ(count(html, "\"card wide"), 1);
  EXPECT_THAT(html, HasSubstr("<div class=\"card wide scroll\"><h3>Loss</h3>"));
}

TEST_F(ReportTest, HoldsEverythingOnce) {
  const Report report = example(4);
  const std::string html = render(report);
  EXPECT_EQ(render(report), html);
  expect_well_formed(html);
  EXPECT_EQ(count(html, "<svg class=\"chart\""), 2);
  EXPECT_EQ(count(html, "<svg class=\"bars\""), 2);
  for (const char* text : {"quickstart", "2.6x popularity", "sequential rules", "all_to_all",
                           "rank 3", "12 ms on the busiest rank", "epochs: 10", "5f3c9a1e"})
    EXPECT_THAT(html, HasSubstr(text));
  // Nothing is asked for from elsewhere, and nothing runs.
  EXPECT_THAT(html, Not(HasSubstr("<script")));
  EXPECT_THAT(html, Not(HasSubstr("http://")));
  EXPECT_THAT(html, Not(HasSubstr("https://")));
  EXPECT_THAT(html, HasSubstr("default-src 'none'"));
  EXPECT_LT(html.size(), 200'000u);
}

TEST_F(ReportTest, EmptyPartsAreLeftOut) {
  const std::string html = render({});
  expect_well_formed(html);
  EXPECT_THAT(html, Not(HasSubstr("<h2>")));
  EXPECT_THAT(html, Not(HasSubstr("<svg")));
}

TEST_F(ReportTest, ManyRanks) {
  const std::string html = render(example(96));
  expect_well_formed(html);
  EXPECT_THAT(html, HasSubstr("ranks 0\xE2\x80\x93"
                              "95"));
  EXPECT_LT(html.size(), 500'000u);
}

// Every string of a user, with what could break out of its place.
TEST_F(ReportTest, HostileNamesDoNothing) {
  const std::string evil =
      "</title></style><script>alert(1)</script><img src=x onerror=\"1\">'\x01&";
  Report report = example(2);
  report.title = report.status = report.command = report.config = evil;
  report.phases_note = report.load_note = report.results.note = evil;
  report.facts = {evil};
  report.headlines = {{evil, evil, evil}};
  report.curves[0].title = report.curves[0].x_label = report.curves[0].y_label = evil;
  report.curves[0].curves[0].name = evil;
  report.curves[1].levels[0].name = evil;
  report.phases.parts[0] = report.phases.bars[0] = report.phases.unit = report.phases.title = evil;
  report.plan.tables[evil] = {Sharding::kRowWise, 0, evil};
  report.results.headers[0] = report.results.rows[0][0] = evil;
  report.provenance = {{evil, evil}};
  const std::string html = render(report);
  expect_well_formed(html);
  EXPECT_THAT(html, Not(HasSubstr("<script")));
  EXPECT_THAT(html, Not(HasSubstr("<img")));
  EXPECT_THAT(html, Not(HasSubstr("\x01")));
  EXPECT_EQ(count(html, "</style>"), 1);
  EXPECT_EQ(count(html, "</title>"),
            count(html, "<title>"));  // of the page and of the figures' parts
}

TEST_F(ReportTest, FileThatCannotBeWritten) {
  EXPECT_THROW(write_report({}, folder_ + "/no/such/report.html"), UserError);
}

// A browser opens it without a complaint, and what it shows is as tall as its parts.
TEST_F(ReportTest, OpensInChromium) {
  if (std::system("command -v chromium >/dev/null") != 0) GTEST_SKIP() << "no chromium here";
  write_report(example(4), folder_ + "/report.html");
  const std::string command = "HOME='" + folder_ +
                              "' timeout 120 chromium --headless --no-sandbox --disable-gpu "
                              "--disable-dev-shm-usage --user-data-dir='" +
                              folder_ +
                              "/profile' --enable-logging=stderr "
                              "--v=0 --hide-scrollbars --window-size=1240,2400 --screenshot='" +
                              folder_ + "/shot.png' 'file://" + folder_ + "/report.html' >'" +
                              folder_ + "/log' 2>&1";
  ASSERT_EQ(std::system(command.c_str()), 0);
  std::ostringstream log;
  log << std::ifstream(folder_ + "/log").rdbuf();
  EXPECT_THAT(log.str(), Not(HasSubstr("CONSOLE")));
  EXPECT_THAT(log.str(), Not(HasSubstr("Content Security Policy")));
  EXPECT_GT(std::filesystem::file_size(folder_ + "/shot.png"), 50'000u);
}

}  // namespace
}  // namespace tautline::diagnose
