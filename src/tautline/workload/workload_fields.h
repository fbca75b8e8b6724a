// The YAML of a built log's statistics (OUT/workload.yaml) and of a Workload.
#pragma once

#include "tautline/base/config.h"
#include "tautline/workload/workload.h"

namespace tautline {

template <class V>
void fields(V& v, LengthStatistics& x) {
  v("minimum", x.minimum, "events of the user with the fewest");
  v("p50", x.p50, "median events of a user");
  v("p90", x.p90, "nine users in ten have no more");
  v("p99", x.p99, "99 users in 100 have no more");
  v("maximum", x.maximum, "events of the user with the most");
  v("mean", x.mean, "mean events of a user");
  v("log_mean", x.log_mean, "mean of ln(events): the log-normal that fits");
  v("log_sigma", x.log_sigma, "standard deviation of ln(events)");
}

template <class V>
void fields(V& v, VocabularyStatistics& x) {
  v("size", x.size, "distinct values; ids are 1..size, 0 stands for unknown");
  v("zipf_exponent", x.zipf_exponent, "slope of log count over log rank");
  v("top1_share", x.top1_share, "share of events of the most frequent value");
  v("top100_share", x.top100_share, "share of events of the 100 most frequent values");
}

template <class V>
void fields(V& v, BaselineMetrics& x) {
  v("hr_at_10", x.hr_at_10, "share of users whose held-out item ranks in the first ten");
  v("ndcg_at_10", x.ndcg_at_10, "the same, weighted by 1 / log2(rank + 1)");
  v("hr_at_10_unseen", x.hr_at_10_unseen, "without the items that the user has seen");
  v("ndcg_at_10_unseen", x.ndcg_at_10_unseen, "without the items that the user has seen");
  v("hr_at_10_later", x.hr_at_10_later, "targets strictly later than the last known event");
  v("ndcg_at_10_later", x.ndcg_at_10_later, "targets strictly later than the last known event");
  v("setting", x.setting, "what was chosen on validation");
}

template <class V>
void fields(V& v, LogStatistics& x) {
  v("name", x.name, "of the log");
  v("format", x.format, "version of the files beside this one");
  v("users", x.users, "sequences");
  v("events", x.events, "over all users");
  v("shards", x.shards, "part files");
  v("first_time", x.first_time, "of an event, seconds since 1970");
  v("last_time", x.last_time, "of an event, seconds since 1970");
  v("items_digest", x.items_digest, "of the items' names, in the order of their ids");
  v("histories_digest", x.histories_digest, "of every user's items and times");
  v("column_digests", x.column_digests, "of each further column's values, event by event");
  v("length", x.length, "how long the users' sequences are");
  v("vocabularies", x.vocabularies, "categorical columns; item always");
  v("categorical", x.categorical, "further categorical columns of an event");
  v("dense", x.dense, "dense columns of an event");
  v("labels", x.labels, "label columns of an event");
  v("baselines", x.baselines, "what counting models reach on the held-out events");
}

template <class V>
void fields(V& v, TableWork& x) {
  v("rows", x.rows, "rows of the table");
  v("dim", x.dim, "width of a row");
  v("ids_per_step", x.ids_per_step, "lookups a step over all ranks, duplicates counted");
  v.bytes("state_per_row", x.state_bytes_per_row, "optimiser state of a row");
}

template <class V>
void fields(V& v, Workload& x) {
  v("model", x.model, "what is trained");
  v("batch", x.batch, "samples a step over all ranks");
  v("tokens_per_step", x.tokens_per_step, "positions through the network, expected");
  v("tables", x.tables, "what a step asks of each table");
  v("dense_parameters", x.dense_parameters, "parameters outside the tables");
  v("flop_per_step", x.flop_per_step, "useful FLOP, forward and backward");
}

}  // namespace tautline
