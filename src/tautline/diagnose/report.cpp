#include "tautline/diagnose/report.h"

#include <algorithm>

#include "tautline/base/new_file.h"
#include "tautline/base/units.h"
#include "tautline/diagnose/report_style.h"
#include "tautline/diagnose/svg.h"

namespace tautline::diagnose {
namespace {

constexpr int kRanksDrawn = 32;  // beyond that a row of squares tells nothing

std::string section(const std::string& title, const std::string& body) {
  return body.empty() ? "" : joined("<section><h2>", title, "</h2>", body, "</section>\n");
}

std::string note(const std::string& text) {
  return text.empty() ? "" : joined("<p class=\"note\">", escaped(text), "</p>");
}

std::string card(const std::string& body) {
  return body.empty() ? "" : joined("<div class=\"card\">", body, "</div>");
}

std::string head(const Report& report) {
  std::string out =
      joined("<header><h1>", escaped(report.title), "</h1><span class=\"status",
             report.good ? "" : " bad", "\">", escaped(report.status), "</span></header>\n");
  if (!report.facts.empty()) {
    out += "<p class=\"facts\">";
    for (const std::string& fact : report.facts) out += joined("<span>", escaped(fact), "</span>");
    out += "</p>\n";
  }
  if (report.headlines.empty()) return out;
  out += "<ul class=\"tiles\">";
  for (const Headline& h : report.headlines)
    out += joined("<li><span class=\"name\" title=\"", escaped(h.label), "\">", escaped(h.label),
                  "</span><span class=\"figure\">", escaped(h.value),
                  "</span><span class=\"remark\">", escaped(h.note), "</span></li>");
  return out + "</ul>\n";
}

/// Two in a row; of an odd number the first one, the loss, takes a row of its own.
std::string charts(const std::vector<Chart>& list) {
  std::vector<Chart> drawn;
  for (const Chart& chart : list)
    if (!render_chart(chart).empty()) drawn.push_back(chart);
  if (drawn.size() > 1 && drawn.size() % 2 == 1) drawn.front().wide = true;
  std::string out;
  for (const Chart& chart : drawn)
    out += joined("<div class=\"card", chart.wide ? " wide scroll" : "", "\"><h3>",
                  escaped(chart.title), "</h3>", render_chart(chart), "</div>");
  return out.empty() ? "" : joined("<div class=\"charts\">", out, "</div>");
}

std::string table(const ReportTable& table) {
  if (table.rows.empty()) return "";
  std::vector<bool> numbers;
  std::string out = "<div class=\"scroll\"><table><thead><tr>";
  for (const std::string& header : table.headers) {
    numbers.push_back(!header.empty() && header[0] == '>');
    out += joined("<th", numbers.back() ? " class=\"number\"" : "", ">",
                  escaped(numbers.back() ? header.substr(1) : header), "</th>");
  }
  out += "</tr></thead><tbody>";
  for (size_t r = 0; r < table.rows.size(); ++r) {
    out += static_cast<int>(r) == table.emphasised_row ? "<tr class=\"model\">" : "<tr>";
    for (size_t c = 0; c < table.rows[r].size(); ++c)
      out += joined("<td", c < numbers.size() && numbers[c] ? " class=\"number\"" : "", ">",
                    escaped(table.rows[r][c]), "</td>");
    out += "</tr>";
  }
  return out + "</tbody></table></div>";
}

struct Placement {
  std::string name;
  int first = 0, last = 0;  // ranks that hold a part
};

Placement placement_of(const TablePlan& table, int devices) {
  switch (table.sharding) {
    case Sharding::kTableWise:
      return {"table-wise", table.owner, table.owner};
    case Sharding::kRowWise:
      return {"row-wise", 0, devices - 1};
    case Sharding::kDataParallel:
      return {"a copy on every rank", 0, devices - 1};
  }
  return {};
}

std::string ranks_of(const Placement& placement, int devices) {
  const std::string text = placement.first == placement.last
                               ? joined("rank ", placement.first)
                               : joined("ranks ", placement.first, "\xE2\x80\x93", placement.last);
  if (devices > kRanksDrawn) return text;
  const int columns = std::min(devices, kRanksDrawn / 2);
  std::string out = joined("<span class=\"ranks\" style=\"grid-template-columns:repeat(", columns,
                           ",9px)\" role=\"img\" aria-label=\"", text, "\" title=\"", text, "\">");
  for (int rank = 0; rank < devices; ++rank)
    out += rank >= placement.first && rank <= placement.last ? "<i class=\"on\"></i>" : "<i></i>";
  return out + "</span>";
}

std::string tables(const Report& report) {
  if (report.plan.tables.empty()) return "";
  std::string out =
      "<div class=\"card scroll\"><table><thead><tr><th>table</th><th class=\"number\">rows "
      "\xC3\x97 "
      "width</th><th class=\"number\">weights</th><th "
      "class=\"number\">optimiser</th><th>sharding</th>"
      "<th>ranks</th><th>because</th></tr></thead><tbody>";
  for (const auto& [name, plan] : report.plan.tables) {
    const Placement placement = placement_of(plan, report.plan.devices);
    out += joined("<tr><td>", escaped(name), "</td>");
    if (const auto size = report.tables.find(name); size != report.tables.end())
      out += joined("<td class=\"number\">", grouped(size->second.rows), " \xC3\x97 ",
                    size->second.dim, "</td><td class=\"number\">",
                    rounded_quantity(size->second.weight_bytes, Unit::kBytes),
                    "</td><td class=\"number\">",
                    rounded_quantity(size->second.optimizer_bytes, Unit::kBytes), "</td>");
    else
      out += "<td></td><td></td><td></td>";
    out += joined("<td class=\"holders\">", placement.name, "</td><td class=\"holders\">",
                  ranks_of(placement, report.plan.devices), "</td><td class=\"because\">",
                  escaped(plan.because), "</td></tr>");
  }
  return out + "</tbody></table></div>";
}

std::string configuration(const Report& report) {
  std::string out;
  if (!report.command.empty()) out += joined("<pre>", escaped(report.command), "</pre>");
  if (!report.config.empty())
    out += joined("<details><summary>Resolved configuration</summary><pre>", escaped(report.config),
                  "</pre></details>");
  return out;
}

std::string foot(const Report& report) {
  std::string out = "<footer><dl>";
  for (const auto& [name, value] : report.provenance)
    out += joined("<dt>", escaped(name), "</dt><dd>", escaped(value), "</dd>");
  return out + "</dl></footer>\n";
}

}  // namespace

std::string render(const Report& report) {
  std::string out =
      "<!doctype html>\n<html lang=\"en\"><head><meta charset=\"utf-8\">\n"
      "<meta http-equiv=\"Content-Security-Policy\" content=\"default-src 'none'; style-src "
      "'unsafe-inline'; img-src data:; base-uri 'none'; form-action 'none'\">\n"
      "<meta name=\"viewport\" content=\"width=device-width, initial-scale=1\">\n"
      // An empty icon: a browser would otherwise ask the server for one.
      "<link rel=\"icon\" href=\"data:,\">\n";
  out += joined("<title>", escaped(report.title), " \xC2\xB7 tautline</title>\n<style>",
                kReportStyle, "</style></head>\n<body><main>\n");
  out += head(report);
  const std::string results = table(report.results);
  out += section("Results", results.empty() ? "" : card(results + note(report.results.note)));
  out += section("Learning", charts(report.curves));
  const std::string phases = render_bars(report.phases);
  out += section("Where a step's time goes",
                 phases.empty() ? "" : card(phases) + note(report.phases_note));
  const std::string load = render_bars(report.load);
  out += section("Load of the ranks", load.empty() ? "" : card(load) + note(report.load_note));
  out += section("Where each table lives, and why", tables(report));
  out += section("Command and configuration", configuration(report));
  out += foot(report);
  return out + "</main></body></html>\n";
}

void write_report(const Report& report, const std::string& path) {
  write_text_file(path, render(report));
}

}  // namespace tautline::diagnose
