#include "join_columns.hpp"

#include <charconv>
#include <cstring>
#include <deque>
#include <string_view>
#include <vector>

#include "bytes.hpp"

namespace dft::link {
namespace {
using py::View;
using py::WithoutLock;

// One column of byte strings, of which row after row is wanted.
struct Column {
  enum Kind { kSame, kCodes, kSlices, kNumbers, kThree } kind = kSame;
  std::string_view text;
  std::vector<std::string_view> pieces;
  const int32_t* codes = nullptr;
  const int64_t* numbers = nullptr;  // ends of slices, or the numbers themselves
  Py_ssize_t rows = -1;              // -1: any

  // The bytes of a row; numbers are written to `digits`. False: the column has no such row.
  bool get(int64_t row, char (&digits)[24], std::string_view& out) const {
    if (kind == kSame) {
      out = text;
      return true;
    }
    if (row < 0 || row >= rows) return false;
    switch (kind) {
      case kCodes: {
        const auto code = size_t(uint32_t(codes[row]));
        if (code >= pieces.size()) return false;
        out = pieces[code];
        return true;
      }
      case kSlices: {
        const int64_t begin = row == 0 ? 0 : numbers[row - 1];
        if (begin < 0 || begin > numbers[row] || numbers[row] > int64_t(text.size())) return false;
        out = {text.data() + begin, size_t(numbers[row] - begin)};
        return true;
      }
      case kNumbers: {
        const auto done = std::to_chars(digits, digits + sizeof digits, numbers[row]);
        out = {digits, size_t(done.ptr - digits)};
        return true;
      }
      default: {
        const auto n = unsigned(numbers[row]) % 1000u;
        digits[0] = char('0' + n / 100);
        digits[1] = char('0' + n / 10 % 10);
        digits[2] = char('0' + n % 10);
        out = {digits, 3};
        return true;
      }
    }
  }
};

// The buffers that columns look into stay where they are.
const View* hold(std::deque<View>& views, PyObject* object) {
  return views.emplace_back().take(object) ? &views.back() : nullptr;
}

bool read_column(PyObject* spec, std::deque<View>& views, Column& out) {
  if (PyBytes_Check(spec)) {
    out.text = {PyBytes_AS_STRING(spec), size_t(PyBytes_GET_SIZE(spec))};
    return true;
  }
  const char* kind = nullptr;
  PyObject* first = nullptr;
  PyObject* second = nullptr;
  if (!PyTuple_Check(spec) || !PyArg_ParseTuple(spec, "sO|O", &kind, &first, &second)) {
    if (!PyErr_Occurred()) PyErr_SetString(PyExc_TypeError, "a column is bytes or a tuple");
    return false;
  }
  const std::string_view name = kind;
  const View* view = hold(views, first);
  if (!view) return false;
  if (name == "codes" && second && PyList_Check(second)) {
    out.kind = Column::kCodes;
    out.codes = view->as<int32_t>();
    out.rows = Py_ssize_t(view->count(4));
    for (Py_ssize_t i = 0; i < PyList_GET_SIZE(second); ++i) {
      PyObject* piece = PyList_GET_ITEM(second, i);
      if (!PyBytes_Check(piece)) {
        PyErr_SetString(PyExc_TypeError, "pieces are bytes");
        return false;
      }
      out.pieces.emplace_back(PyBytes_AS_STRING(piece), size_t(PyBytes_GET_SIZE(piece)));
    }
    return true;
  }
  if (name == "slices" && second) {
    const View* ends = hold(views, second);
    if (!ends) return false;
    out.kind = Column::kSlices;
    out.text = view->text();
    out.numbers = ends->as<int64_t>();
    out.rows = Py_ssize_t(ends->count(8));
    return true;
  }
  if (name == "numbers" || name == "three") {
    out.kind = name == "three" ? Column::kThree : Column::kNumbers;
    out.numbers = view->as<int64_t>();
    out.rows = Py_ssize_t(view->count(8));
    return true;
  }
  PyErr_Format(PyExc_ValueError, "unknown kind of column: %s", kind);
  return false;
}

}  // namespace

PyObject* join_columns(PyObject*, PyObject* args) {
  PyObject* specs = nullptr;
  PyObject* order = nullptr;
  if (!PyArg_ParseTuple(args, "O!O", &PyList_Type, &specs, &order)) return nullptr;
  const auto n = size_t(PyList_GET_SIZE(specs));
  std::deque<View> views;
  std::vector<Column> columns(n);
  for (size_t i = 0; i < n; ++i)
    if (!read_column(PyList_GET_ITEM(specs, Py_ssize_t(i)), views, columns[i])) return nullptr;
  const View* view = hold(views, order);
  if (!view) return nullptr;
  const auto* rows = view->as<int64_t>();
  const size_t count = view->count(8);
  // Sizes first: the result is written once, into its own memory.
  std::vector<int64_t> ends(count);
  int64_t total = 0;
  bool good = true;
  char digits[24];
  {
    const WithoutLock released;
    for (size_t k = 0; k < count && good; ++k) {
      std::string_view piece;
      for (const Column& c : columns) {
        good = good && c.get(rows[k], digits, piece);
        total += int64_t(piece.size());
      }
      ends[k] = total;
    }
  }
  if (!good) {
    PyErr_SetString(PyExc_IndexError, "a row, a code or a slice that a column does not have");
    return nullptr;
  }
  py::Ref text(PyBytes_FromStringAndSize(nullptr, Py_ssize_t(total)));
  if (!text) return nullptr;
  char* to = PyBytes_AS_STRING(text.get());
  {
    const WithoutLock released;
    for (size_t k = 0; k < count; ++k) {
      std::string_view piece;
      for (const Column& c : columns) {
        c.get(rows[k], digits, piece);
        memcpy(to, piece.data(), piece.size());
        to += piece.size();
      }
    }
  }
  return Py_BuildValue("(NN)", text.release(), bytes_of(ends));
}

}  // namespace dft::link
