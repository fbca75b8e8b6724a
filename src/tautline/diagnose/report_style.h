// The look of the report: one style sheet, light and dark. Series colours are those of Okabe and Ito
// ("Color Universal Design", 2008), which stay apart for colour-blind readers; in the dark they are
// a little lighter.
#pragma once

namespace tautline::diagnose {

inline constexpr const char* kReportStyle = R"css(
:root{color-scheme:light dark;
--paper:#fff;--card:#fff;--ink:#1b1f24;--muted:#616a75;--line:#e3e6ea;--grid:#eceef1;--soft:#f6f7f9;
--good:#0a6b4d;--good-back:#e2f3ec;--bad:#a33a00;--bad-back:#fdeadf;--idle:#d5d9de;
--c0:#0072b2;--c1:#d55e00;--c2:#009e73;--c3:#e69f00;--c4:#cc79a7;--c5:#56b4e9;--c6:#7f7f7f;--c7:#f0e442;
--on0:#fff;--on1:#fff;--on2:#fff;--on3:#1b1f24;--on4:#1b1f24;--on5:#1b1f24;--on6:#fff;--on7:#1b1f24}
@media (prefers-color-scheme:dark){:root{
--paper:#14171b;--card:#191d22;--ink:#e6e9ed;--muted:#98a2ad;--line:#2c323a;--grid:#262b32;--soft:#1f242a;
--good:#5fd3a8;--good-back:#143328;--bad:#ff9a66;--bad-back:#3a2117;--idle:#3b424b;
--c0:#3d9bd6;--c1:#e8793a;--c2:#2bb98d;--c3:#efb33c;--c4:#d994bb;--c5:#7cc6f2;--c6:#a0a0a0;--c7:#f3e96b;
--on0:#0e1114;--on1:#0e1114;--on2:#0e1114;--on3:#0e1114;--on4:#0e1114;--on5:#0e1114;--on6:#0e1114;--on7:#0e1114}}
*{box-sizing:border-box}
body{margin:0;background:var(--paper);color:var(--ink);
font:15px/1.5 -apple-system,BlinkMacSystemFont,"Segoe UI",Roboto,"Noto Sans","Helvetica Neue","Liberation Sans",Arial,sans-serif;
-webkit-text-size-adjust:100%}
main{max-width:1160px;margin:0 auto;padding:36px 32px 56px}
header{display:flex;flex-wrap:wrap;align-items:baseline;gap:6px 14px}
h1{font-size:26px;line-height:1.2;margin:0;letter-spacing:-.01em;overflow-wrap:anywhere}
h2{font-size:18px;margin:44px 0 12px;letter-spacing:-.005em}
h3{font-size:14px;margin:0 0 10px;font-weight:600}
p{margin:0 0 12px}
.facts{color:var(--muted);margin:8px 0 0}
.facts span+span::before{content:"\00b7";margin:0 8px}
.status{font-size:13px;font-weight:600;padding:2px 10px;border-radius:99px;background:var(--good-back);color:var(--good)}
.status.bad{background:var(--bad-back);color:var(--bad)}
.card+.note{margin-top:10px}
.card .note{margin:12px 0 2px}
.note{color:var(--muted);font-size:14px;max-width:80ch}
.tiles{display:grid;grid-template-columns:repeat(auto-fit,minmax(158px,1fr));gap:12px;margin:26px 0 0;padding:0;list-style:none}
.tiles li,.card{border:1px solid var(--line);border-radius:10px;background:var(--card)}
.tiles li{padding:12px 16px 13px}
.tiles .name{display:block;white-space:nowrap;overflow:hidden;text-overflow:ellipsis;font-size:13px;color:var(--muted)}
.tiles .figure{display:block;font-size:24px;line-height:1.3;font-weight:600;letter-spacing:-.01em;font-variant-numeric:tabular-nums}
.tiles .remark{display:block;font-size:13px;color:var(--muted)}
.card{padding:16px 18px 14px}
.charts{display:grid;grid-template-columns:repeat(auto-fit,minmax(min(480px,100%),1fr));gap:16px}
.wide{grid-column:1/-1}
svg{display:block;width:100%;height:auto;overflow:visible;font-size:12px}
.bars,.wide svg{min-width:720px}
svg text{fill:var(--ink);font-variant-numeric:tabular-nums}
svg .tick,svg .label{fill:var(--muted)}
.grid{stroke:var(--grid);stroke-width:1}
.axis,.mark{stroke:var(--muted);stroke-width:1;opacity:.7}
.curve{fill:none;stroke-width:2;stroke-linejoin:round;stroke-linecap:round}
.raw{fill:none;stroke-width:1;opacity:.28;stroke-linejoin:round}
.level{stroke:var(--muted);stroke-width:1.5;stroke-dasharray:5 4}
.leader{fill:none;stroke-width:1;opacity:.7}
.value{font-weight:600}
.legend{display:flex;flex-wrap:wrap;gap:4px 18px;list-style:none;margin:0 0 12px;padding:0;font-size:13px}
.swatch{display:inline-block;width:11px;height:11px;border-radius:3px;margin-right:7px;vertical-align:-1px}
.scroll{overflow-x:auto}
table{border-collapse:collapse;width:100%;font-size:14px;font-variant-numeric:tabular-nums}
th,td{text-align:left;padding:7px 14px 7px 0;border-bottom:1px solid var(--line);vertical-align:top}
th{font-weight:600;font-size:13px;color:var(--muted);white-space:nowrap}
th:last-child,td:last-child{padding-right:0}
tbody tr:last-child td{border-bottom:0}
.number{text-align:right;white-space:nowrap}
.model td{font-weight:600}
.because{color:var(--muted);min-width:24ch}
.holders{white-space:nowrap}
.ranks{display:inline-grid;gap:2px;vertical-align:-1px}
.ranks i{width:9px;height:9px;border-radius:2px;background:var(--idle)}
.ranks i.on{background:var(--c0)}
pre{margin:0;padding:14px 16px;border-radius:10px;background:var(--soft);border:1px solid var(--line);
font:13px/1.5 ui-monospace,SFMono-Regular,Menlo,Consolas,"Liberation Mono",monospace;overflow-x:auto;white-space:pre-wrap;overflow-wrap:anywhere}
details{margin-top:14px}
summary{cursor:pointer;font-weight:600;font-size:14px;margin-bottom:10px}
footer{margin-top:44px;padding-top:16px;border-top:1px solid var(--line);color:var(--muted);font-size:13px}
dl{display:grid;grid-template-columns:max-content 1fr;gap:2px 18px;margin:0}
dt{color:var(--muted)}
dd{margin:0;overflow-wrap:anywhere}
@media (max-width:640px){main{padding:24px 16px 40px}}
@media print{main{max-width:none;padding:0}.card,.tiles li,table{break-inside:avoid}h2{break-after:avoid}}
)css";

}  // namespace tautline::diagnose
