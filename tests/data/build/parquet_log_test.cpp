// Parquet logs: types of columns, row groups, errors.
#include <cmath>
#include <filesystem>
#include <gmock/gmock.h>
#include <limits>

#include "data/built.h"

namespace tautline::data {
namespace {

using namespace testing_build;
using testing::AllOf;
using testing::ElementsAre;
using testing::HasSubstr;

template <class Builder, class T>
std::shared_ptr<arrow::Array> array(Builder&& builder, const std::vector<T>& values) {
  for (const T& value : values) EXPECT_TRUE(builder.Append(value).ok());
  return builder.Finish().ValueOrDie();
}

std::shared_ptr<arrow::Array> texts(const std::vector<std::string>& values) {
  return array(arrow::StringBuilder(), values);
}
std::shared_ptr<arrow::Array> longs(const std::vector<int64_t>& values) {
  return array(arrow::Int64Builder(), values);
}

using Columns = std::vector<std::pair<std::string, std::shared_ptr<arrow::Array>>>;

class ParquetLog : public testing::Test {
 protected:
  ParquetLog() {
    options_.log = folder_ / "log.parquet";
    options_.out = folder_ / "out";
    options_.baselines = false;
    options_.overwrite = true;
  }
  void write(const Columns& columns, int64_t rows_per_group = 2) {
    arrow::FieldVector fields;
    arrow::ArrayVector arrays;
    for (const auto& [name, values] : columns) {
      fields.push_back(arrow::field(name, values->type()));
      arrays.push_back(values);
    }
    const auto table = arrow::Table::Make(arrow::schema(fields), arrays);
    auto sink = arrow::io::FileOutputStream::Open(options_.log).ValueOrDie();
    const auto keep_types = parquet::ArrowWriterProperties::Builder().store_schema()->build();
    ASSERT_TRUE(parquet::arrow::WriteTable(*table, arrow::default_memory_pool(), sink,
                                           rows_per_group, parquet::default_writer_properties(),
                                           keep_types)
                    .ok());
    ASSERT_TRUE(sink->Close().ok());
  }
  TemporaryFolder folder_;
  BuildOptions options_;
};

TEST_F(ParquetLog, TokensOfEveryKindOfColumn) {
  const std::vector<std::string> users = {"b", "a", "b", "a", "b"};
  const auto dictionary =
      arrow::DictionaryArray::FromArrays(
          array(arrow::Int8Builder(), std::vector<int8_t>{1, 0, 1, 0, 1}), texts({"a", "b"}))
          .ValueOrDie();
  const std::shared_ptr<arrow::Array> user_columns[] = {
      texts(users), array(arrow::LargeStringBuilder(), users),
      array(arrow::StringViewBuilder(), users), array(arrow::BinaryBuilder(), users), dictionary};
  const std::shared_ptr<arrow::Array> item_columns[] = {
      longs({-5, 6, 7, 6, 300}),
      array(arrow::Int16Builder(), std::vector<int16_t>{-5, 6, 7, 6, 300}),
      texts({"-5", "6", "7", "6", "300"})};
  for (const auto& user : user_columns)
    for (const auto& item : item_columns) {
      write({{"extra", longs({1, 2, 3, 4, 5})},
             {"item", item},
             {"time", longs({5, 4, 3, 2, 1})},
             {"user", user}});
      build_log(options_);
      const Built built = read_built(options_.out);
      SCOPED_TRACE(user->type()->ToString() + " " + item->type()->ToString());
      EXPECT_THAT(built.users.at("b").item, ElementsAre("300", "7", "-5"));
      EXPECT_THAT(built.users.at("a").item, ElementsAre("6", "6"));
      EXPECT_THAT(built.vocabulary.at("item"), ElementsAre("6", "-5", "7", "300"));
    }
}

TEST_F(ParquetLog, TimestampColumnsBringTheirUnit) {
  for (const auto unit : {arrow::TimeUnit::SECOND, arrow::TimeUnit::MILLI, arrow::TimeUnit::NANO}) {
    const int64_t scale = unit == arrow::TimeUnit::SECOND  ? 1
                          : unit == arrow::TimeUnit::MILLI ? 1000
                                                           : 1000000000;
    arrow::TimestampBuilder builder(arrow::timestamp(unit, "UTC"), arrow::default_memory_pool());
    const auto time = array(builder, std::vector<int64_t>{7 * scale, 3 * scale});
    write({{"user", texts({"u", "u"})}, {"item", texts({"a", "b"})}, {"time", time}});
    build_log(options_);
    EXPECT_THAT(read_built(options_.out).users.at("u").time, ElementsAre(3, 7)) << unit;
  }
}

TEST_F(ParquetLog, TimestampsOfAnyUnitAreTheirTimes) {
  constexpr int64_t kTimes[] = {1'700'000'123, 1'500'000'000, 1'600'000'000, -1};
  const std::pair<arrow::TimeUnit::type, int64_t> units[] = {
      {arrow::TimeUnit::SECOND, 1},
      {arrow::TimeUnit::MILLI, 1'000},
      {arrow::TimeUnit::MICRO, 1'000'000},
      {arrow::TimeUnit::NANO, 1'000'000'000}};
  for (const auto& [unit, scale] : units)
    for (const auto wanted : {TimeUnit::kSeconds, TimeUnit::kMilliseconds, TimeUnit::kMicroseconds,
                              TimeUnit::kNanoseconds}) {
      arrow::TimestampBuilder builder(arrow::timestamp(unit), arrow::default_memory_pool());
      std::vector<int64_t> values;
      for (const int64_t second : kTimes) values.push_back(second * scale);
      write({{"user", texts({"u", "u", "u", "u"})},
             {"item", texts({"d", "b", "c", "a"})},
             {"time", array(builder, values)}});
      options_.time_unit = wanted;
      build_log(options_);
      const History history = read_built(options_.out).users.at("u");
      EXPECT_THAT(history.time, ElementsAre(-1, 1'500'000'000, 1'600'000'000, 1'700'000'123))
          << unit << " read as " << static_cast<int>(wanted);
      EXPECT_THAT(history.item, ElementsAre("a", "b", "c", "d"));
    }
}

TEST_F(ParquetLog, NumbersAndBooleansAsColumns) {
  options_.dense = {"price", "flag"};
  options_.categorical = {"kind"};
  arrow::BooleanBuilder kinds;
  EXPECT_TRUE(kinds.Append(true).ok());
  EXPECT_TRUE(kinds.AppendNull().ok());
  write({{"user", texts({"u", "u"})},
         {"item", texts({"a", "b"})},
         {"time", array(arrow::DoubleBuilder(), std::vector<double>{2.5, 1.5})},
         {"price", array(arrow::DoubleBuilder(), std::vector<double>{0.5, -2})},
         {"flag", array(arrow::BooleanBuilder(), std::vector<bool>{true, false})},
         {"kind", kinds.Finish().ValueOrDie()}});
  build_log(options_);
  const History history = read_built(options_.out).users.at("u");
  EXPECT_THAT(history.dense.at("price"), ElementsAre(-2, 0.5));
  EXPECT_THAT(history.dense.at("flag"), ElementsAre(0, 1));
  EXPECT_THAT(history.categorical.at("kind"), ElementsAre("", "true"));
}

TEST_F(ParquetLog, ErrorsNameRowGroupRowAndColumn) {
  const auto users = texts({"u", "u", "u"}), items = texts({"a", "b", "c"});
  const auto times = longs({1, 2, 3});
  options_.user = "usr";
  write({{"user", users}, {"item", items}, {"time", times}});
  EXPECT_THAT(build_error(options_), AllOf(HasSubstr("'usr'"), HasSubstr("'user'")));
  options_.user = "user";
  write({{"user", users}, {"item", items}, {"time", texts({"1", "2", "3"})}});
  EXPECT_THAT(build_error(options_), AllOf(HasSubstr("'time'"), HasSubstr("timestamps as text")));
  write({{"user", array(arrow::DoubleBuilder(), std::vector<double>{1, 2, 3})},
         {"item", items},
         {"time", times}});
  EXPECT_THAT(build_error(options_), AllOf(HasSubstr("'user'"), HasSubstr("double")));
  write({{"user", users}, {"item", texts({"a", "b", ""})}, {"time", times}});
  EXPECT_THAT(build_error(options_), AllOf(HasSubstr("row group 1, row 0"), HasSubstr("'item'")));
  options_.labels = {"y"};
  write({{"user", users},
         {"item", items},
         {"time", times},
         {"y", array(arrow::FloatBuilder(), std::vector<float>{0, NAN, 1})}});
  EXPECT_THAT(build_error(options_), AllOf(HasSubstr("log.parquet, row group 0, row 1"),
                                           HasSubstr("'y'"), HasSubstr("NaN")));
  arrow::FloatBuilder nulls;
  EXPECT_TRUE(nulls.AppendNulls(3).ok());
  write({{"user", users}, {"item", items}, {"time", times}, {"y", nulls.Finish().ValueOrDie()}});
  EXPECT_THAT(build_error(options_), AllOf(HasSubstr("row group 0, row 0"), HasSubstr("null")));
}

TEST_F(ParquetLog, ALabelIsZeroOrOne) {
  options_.labels = {"y"};
  const auto log_with = [&](std::shared_ptr<arrow::Array> labels) {
    write({{"user", texts({"u", "u", "u"})},
           {"item", texts({"a", "b", "c"})},
           {"time", longs({1, 2, 3})},
           {"y", std::move(labels)}});
    return build_error(options_);
  };
  EXPECT_THAT(
      log_with(longs({0, 1, 2})),
      HasSubstr("log.parquet, row group 1, row 0, column 'y': the label 2 is neither 0 nor 1"));
  EXPECT_THAT(log_with(array(arrow::DoubleBuilder(), std::vector<double>{0, INFINITY, 1})),
              HasSubstr("row group 0, row 1, column 'y': the label inf is neither"));
  EXPECT_EQ(log_with(array(arrow::BooleanBuilder(), std::vector<bool>{true, false, true})), "");
  EXPECT_THAT(read_built(options_.out).users.at("u").dense.at("y"), ElementsAre(1, 0, 1));
  EXPECT_EQ(log_with(array(arrow::UInt8Builder(), std::vector<uint8_t>{1, 1, 0})), "");
  EXPECT_THAT(read_built(options_.out).users.at("u").dense.at("y"), ElementsAre(1, 1, 0));
}

TEST_F(ParquetLog, UnsignedNumbersBeyondSignedOnes) {
  constexpr uint64_t kLast = std::numeric_limits<uint64_t>::max(), kFirst = uint64_t{1} << 63;
  const auto large = array(arrow::UInt64Builder(), std::vector<uint64_t>{kLast, kFirst, 7});
  write({{"user", large}, {"item", large}, {"time", longs({1, 2, 3})}});
  ASSERT_EQ(build_error(options_), "");
  const Built built = read_built(options_.out);
  EXPECT_THAT(built.users.at("18446744073709551615").item, ElementsAre("18446744073709551615"));
  EXPECT_THAT(built.users.at("9223372036854775808").item, ElementsAre("9223372036854775808"));
  write({{"user", large}, {"item", large}, {"time", large}});
  for (const auto unit : {TimeUnit::kSeconds, TimeUnit::kNanoseconds}) {
    options_.time_unit = unit;
    EXPECT_THAT(build_error(options_),
                AllOf(HasSubstr("row group 0, row 0, column 'time': the time "),
                      HasSubstr("18446744073709551615 "), HasSubstr("--time-unit")));
  }
}

TEST_F(ParquetLog, TypesThatAreNoValueAreToldInOneSentence) {
  const auto decimals = array(arrow::Decimal128Builder(arrow::decimal128(10, 2)),
                              std::vector<arrow::Decimal128>{1, 2});
  const auto fixed = array(arrow::FixedSizeBinaryBuilder(arrow::fixed_size_binary(2)),
                           std::vector<std::string>{"ab", "cd"});
  const auto dates = array(arrow::Date32Builder(), std::vector<int32_t>{1, 2});
  arrow::ListBuilder list_builder(arrow::default_memory_pool(),
                                  std::make_shared<arrow::Int64Builder>());
  for (int i = 0; i < 2; ++i) {
    EXPECT_TRUE(list_builder.Append().ok());
    EXPECT_TRUE(static_cast<arrow::Int64Builder*>(list_builder.value_builder())->Append(i).ok());
  }
  const auto lists = list_builder.Finish().ValueOrDie();
  options_.dense = {"price"};
  for (const auto& [odd, type] : {std::pair{decimals, "decimal128(10, 2)"},
                                  {fixed, "fixed_size_binary[2]"},
                                  {dates, "date32[day]"},
                                  {lists, "nested"}})
    for (const std::string column : {"user", "item", "time", "price"}) {
      Columns columns = {{"user", texts({"u", "u"})},
                         {"item", texts({"a", "b"})},
                         {"time", longs({1, 2})},
                         {"price", longs({1, 2})}};
      for (auto& [name, values] : columns)
        if (name == column) values = odd;
      write(columns);
      EXPECT_THAT(build_error(options_),
                  AllOf(HasSubstr("log.parquet: column '" + column + "' is "), HasSubstr(type)));
    }
}

TEST_F(ParquetLog, NumbersThatAFloatCannotHold) {
  options_.dense = {"price"};
  const auto log_with = [&](const std::vector<double>& prices) {
    write({{"user", texts({"u", "u"})},
           {"item", texts({"a", "b"})},
           {"time", longs({1, 2})},
           {"price", array(arrow::DoubleBuilder(), prices)}});
    return build_error(options_);
  };
  EXPECT_THAT(log_with({1, 1e50}),
              HasSubstr("row group 0, row 1, column 'price': 1e+50 is beyond what 32 bits keep"));
  EXPECT_EQ(log_with({1e-50, INFINITY}), "");
  EXPECT_THAT(read_built(options_.out).users.at("u").dense.at("price"), ElementsAre(0, INFINITY));
}

TEST_F(ParquetLog, HalfFloatsAndColumnsOfNothingButNulls) {
  options_.dense = {"price"};
  options_.categorical = {"kind"};
  const auto halves = array(arrow::HalfFloatBuilder(), std::vector<uint16_t>{0x3c00, 0xc100});
  write({{"user", texts({"u", "u"})},
         {"item", texts({"a", "b"})},
         {"time", longs({1, 2})},
         {"price", halves},
         {"kind", std::make_shared<arrow::NullArray>(2)}});
  ASSERT_EQ(build_error(options_), "");
  const History history = read_built(options_.out).users.at("u");
  EXPECT_THAT(history.dense.at("price"), ElementsAre(1, -2.5));
  EXPECT_THAT(history.categorical.at("kind"), ElementsAre("", ""));
}

TEST_F(ParquetLog, ColumnsAreWhatTheyAreCalled) {
  const auto users = texts({"u", "u"}), items = texts({"a", "b"});
  // Two of one name: which is meant nobody knows. A struct's field is no column of the log.
  write({{"user", users}, {"item", items}, {"item", users}, {"time", longs({1, 2})}});
  options_.user = "user", options_.item = "item", options_.time = "time";
  EXPECT_THAT(build_error(options_), HasSubstr("log.parquet: two columns are called 'item'"));
  const std::vector<std::string> fields = {"b"};
  const auto nested = arrow::StructArray::Make({users}, fields).ValueOrDie();
  write({{"a", nested}, {"a.b", items}, {"user", users}, {"time", longs({1, 2})}});
  options_.item = "a.b";
  ASSERT_EQ(build_error(options_), "");
  EXPECT_THAT(read_built(options_.out).users.at("u").item, ElementsAre("a", "b"));
  options_.item = "a";
  EXPECT_THAT(build_error(options_), HasSubstr("column 'a' is nested"));
}

TEST_F(ParquetLog, ALogInsideTheFolderOfTheBuiltLogIsKept) {
  std::filesystem::create_directories(options_.out);
  options_.log = options_.out + "/part-00000.parquet";  // as a build's own file is called
  write({{"user", texts({"u", "u"})}, {"item", texts({"a", "b"})}, {"time", longs({1, 2})}});
  std::filesystem::create_symlink("out", folder_ / "link");
  for (const std::string& log : {options_.log, options_.out, folder_ / "link"}) {
    options_.log = log;
    EXPECT_THAT(build_error(options_),
                AllOf(HasSubstr("part-00000.parquet lies in "), HasSubstr("name another folder")));
    EXPECT_TRUE(std::filesystem::exists(folder_ / "out/part-00000.parquet"));
  }
}

TEST_F(ParquetLog, TokensAreUtf8) {
  for (const std::string bad : {"\xff\xfe", "caf\xe9", "a long text with one wrong byte \x80"}) {
    write({{"user", texts({"u", "u", "u"})},
           {"item", array(arrow::BinaryBuilder(), std::vector<std::string>{"a", "b", bad})},
           {"time", longs({1, 2, 3})}});
    EXPECT_THAT(build_error(options_),
                AllOf(HasSubstr("log.parquet, row group 1, row 0, column 'item': '"),
                      HasSubstr("is not UTF-8")));
  }
}

TEST_F(ParquetLog, CutShort) {
  write({{"user", texts({"u", "u"})}, {"item", texts({"a", "b"})}, {"time", longs({1, 2})}});
  const auto size = std::filesystem::file_size(options_.log);
  for (const uintmax_t left : {size - 1, size / 2, uintmax_t{4}}) {
    std::filesystem::resize_file(options_.log, left);
    for (const char* user : {"", "user"}) {  // the schema is looked at for the usual names
      options_.user = user;
      options_.item = *user ? "item" : "";
      options_.time = *user ? "time" : "";
      const std::string error = build_error(options_);
      EXPECT_THAT(error, HasSubstr("log.parquet is cut short or not Parquet")) << left;
      EXPECT_EQ(error.find_first_of("\n\x0e\x0f"), std::string::npos) << error;
    }
  }
}

TEST_F(ParquetLog, NoRowsIsAnEmptyLog) {
  write({{"user", texts({})}, {"item", texts({})}, {"time", longs({})}});
  EXPECT_THAT(build_error(options_), HasSubstr("holds no events"));
}

}  // namespace
}  // namespace tautline::data
