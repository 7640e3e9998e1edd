make
make install
