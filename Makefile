# The three commands of a newcomer; everything they need is installed by tools/setup.sh.
.PHONY: build test demo fuzz clean

build:
	tools/setup.sh build
	cmake --preset release
	cmake --build --preset release

test:
	tools/test.sh

demo:
	tools/setup.sh model
	cmake --preset release
	cmake --build --preset release --target kvant
	tools/demo.sh

# Five minutes of fuzzing, split over all targets.
fuzz:
	tools/test.sh fuzz 300

clean:
	rm -rf build build-*
