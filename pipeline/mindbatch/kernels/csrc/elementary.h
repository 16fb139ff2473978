// Functions of float64 whose digits are ours: those of a C library differ between libraries, processors and versions.
#pragma once

namespace mindbatch {
namespace elementary {

// Each is within 2 units in the last place. Of NaN they are NaN; beyond float64's range they are 0 or infinite.
double exp(double x);
double log(double x);    // of 0 minus infinity, below it NaN
double log1p(double x);  // log(1 + x)

struct Turn {
  double cosine, sine;
};
Turn turn(double angle);  // in radians, at most 1e8 of them; else NaN

}  // namespace elementary
}  // namespace mindbatch
